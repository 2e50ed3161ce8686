"""Which variables a zygote has while it imports, and which ones belong to a rank or a round."""

from __future__ import annotations

import pytest

from trainmaster.agent.frameworks import ALL, find
from trainmaster.agent.frameworks.framework import Framework
from trainmaster.agent.shell.launching.import_environment import import_environment
from trainmaster.agent.zygote import variables_that_must_match

NUMBERS = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


@pytest.mark.parametrize("framework", ALL, ids=lambda framework: framework.name)
def test_the_numbers_of_a_rank_are_its_own_in_every_framework(framework: Framework) -> None:
    found = import_environment({"RANK": "3", "HF_HOME": "/data"}, framework, has_accelerator=False)
    assert set(found.own) >= NUMBERS
    assert found.variables["HF_HOME"] == "/data"
    assert found.variables.keys().isdisjoint(found.own)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("PyTorch", "TORCHELASTIC_RESTART_COUNT"),
        ("TensorFlow", "TF_CONFIG"),
        ("JAX", "JAX_COORDINATOR_ADDRESS"),
        ("DeepSpeed", "CROSS_RANK"),
        ("Horovod", "HOROVOD_RANK"),
        ("XGBoost", "DMLC_TRACKER_PORT"),
        ("HuggingFace", "ACCELERATE_USE_CPU"),  # a job of one rank doesn't have it
    ],
)
def test_what_a_framework_sets_for_a_round_belongs_to_its_ranks(name: str, own: str) -> None:
    assert own in import_environment({}, find(name), has_accelerator=False).own


def test_a_default_that_all_ranks_of_a_pod_have_is_there_and_the_jobs_own_value_comes_first() -> None:
    deepspeed = find("DeepSpeed")
    assert import_environment({}, deepspeed, has_accelerator=False).variables == {"DS_ACCELERATOR": "cpu"}
    assert import_environment({}, deepspeed, has_accelerator=True).variables == {}
    chosen = import_environment({"DS_ACCELERATOR": "xpu"}, deepspeed, has_accelerator=False)
    assert chosen.variables == {"DS_ACCELERATOR": "xpu"}


def test_a_value_that_the_job_gives_to_all_ranks_is_shared() -> None:
    found = import_environment({"ACCELERATE_USE_CPU": "true"}, find("HuggingFace"), has_accelerator=False)
    assert found.variables == {"ACCELERATE_USE_CPU": "true"}
    assert "ACCELERATE_USE_CPU" not in found.own


@pytest.mark.parametrize(
    ("name", "differs"),
    [
        ("TORCHINDUCTOR_EMULATE_PRECISION_CASTS", True),
        ("TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS", True),
        ("TORCHINDUCTOR_CACHE_DIR", False),  # read at each use
    ],
)
def test_settings_that_torchs_compiler_reads_at_its_import_rule_out_a_zygote_without_them(
    name: str, differs: bool
) -> None:
    """Zygotes have imported it: in a fork such a variable would have no effect."""
    with_it = variables_that_must_match.load_environment({name: "1"})
    assert (variables_that_must_match.differing({}, with_it, reads_kmp=False) == [name]) == differs
