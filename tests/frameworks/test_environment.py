"""What the ranks of each framework get, as a function of their place in a round."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trainmaster.agent import frameworks
from trainmaster.agent.frameworks.framework import Facts, from_numbers, numbers, wrong_address
from trainmaster.contract.launch.framework_variables import SET_BY_US, refusal
from trainmaster_operator.api.job_spec import Framework

SECOND = Facts(
    rank=1,
    world_size=2,
    local_rank=1,
    local_world_size=2,
    store_host="10.0.0.7",
    store_port=29500,
    restart_count=3,
    job_uid="0b5c",
)
ADDRESSES = ["10.0.0.7:21001", "10.0.0.8:21002"]
ALONE = Facts(rank=0, world_size=1)


def test_the_api_and_the_agent_know_the_same_frameworks() -> None:
    assert [framework.name for framework in frameworks.ALL] == [framework.value for framework in Framework]


def test_a_framework_that_an_agent_does_not_know_is_told_with_those_that_it_knows() -> None:
    with pytest.raises(ValueError, match=r"framework Caffe: this agent knows Trainmaster, PyTorch, .*XGBoost"):
        frameworks.find("Caffe")


@pytest.mark.parametrize("framework", frameworks.ALL, ids=lambda framework: framework.name)
def test_every_rank_can_tell_its_place_from_its_variables(framework: frameworks.Framework) -> None:
    read = from_numbers({**numbers(SECOND), **framework.environment(SECOND)})
    assert read == replace(SECOND, restart_count=0, job_uid="")


@pytest.mark.parametrize("name", ["PyTorch", "Trainmaster", "HuggingFace", "DeepSpeed"])
def test_ranks_of_torch_meet_at_the_agents_store(name: str) -> None:
    framework = frameworks.find(name)
    variables = framework.environment(SECOND)
    assert not framework.addresses
    assert variables["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    assert (variables["TORCHELASTIC_RESTART_COUNT"], variables["TORCHELASTIC_RUN_ID"]) == ("3", "0b5c")


def test_deepspeed_gets_what_its_launcher_sets_and_the_cpu_where_there_is_no_device() -> None:
    framework = frameworks.find("DeepSpeed")
    variables = framework.environment(replace(SECOND, node=0, nodes=1))
    assert {name: variables[name] for name in ("LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")} == {
        "LOCAL_SIZE": "2",
        "CROSS_RANK": "0",
        "CROSS_SIZE": "1",
    }
    assert framework.defaults(SECOND) == {"DS_ACCELERATOR": "cpu"}
    assert framework.defaults(replace(SECOND, has_accelerator=True)) == {}


def test_ranks_of_hugging_face_train_on_the_cpu_where_there_is_no_device_and_one_alone_as_it_likes() -> None:
    framework = frameworks.find("HuggingFace")
    assert framework.defaults(SECOND) == {"ACCELERATE_USE_CPU": "true"}
    assert framework.defaults(replace(SECOND, has_accelerator=True)) == {}
    assert framework.defaults(replace(SECOND, rank=0, world_size=1)) == {}


def test_tensorflow_takes_the_tpu_of_its_pod_where_there_is_a_device() -> None:
    framework = frameworks.find("TensorFlow")
    assert framework.defaults(SECOND) == {}
    assert framework.defaults(replace(SECOND, has_accelerator=True)) == {"TPU_NAME": "local"}


def test_tf_config_lists_all_workers_and_says_which_one_this_is() -> None:
    framework = frameworks.find("TensorFlow")
    assert framework.addresses
    config = json.loads(framework.peers(SECOND, ADDRESSES)["TF_CONFIG"])
    assert config == {"cluster": {"worker": ADDRESSES}, "task": {"type": "worker", "index": 1}}


def test_a_rank_of_tensorflow_that_is_alone_has_no_cluster() -> None:
    assert frameworks.find("TensorFlow").peers(ALONE, ADDRESSES[:1]) == {}


def test_jax_finds_its_coordinator_at_rank_0_which_opens_it_there_alone() -> None:
    jax = frameworks.find("JAX")
    assert jax.peers(SECOND, ADDRESSES) == {"JAX_COORDINATOR_ADDRESS": ADDRESSES[0]}
    assert jax.peers(replace(SECOND, rank=0), ADDRESSES) == {
        "JAX_COORDINATOR_ADDRESS": ADDRESSES[0],
        "JAX_COORDINATOR_BIND_ADDRESS": ADDRESSES[0],
    }
    assert "report(step=N)" in jax.unseen


def test_xgboost_finds_its_tracker_at_rank_0() -> None:
    xgboost = frameworks.find("XGBoost")
    tracker = {"DMLC_TRACKER_URI": "10.0.0.7", "DMLC_TRACKER_PORT": "21001"}
    assert xgboost.peers(SECOND, ADDRESSES) == tracker
    assert xgboost.peers(SECOND, ["[fd00::7]:21001", "[fd00::8]:21002"])["DMLC_TRACKER_URI"] == "fd00::7"


def test_horovod_finds_its_rendezvous_at_the_store_and_the_ranks_of_its_node_by_name() -> None:
    horovod = frameworks.find("Horovod")
    second = replace(SECOND, node=1, nodes=2, rank=3, world_size=4)
    assert horovod.environment(second) == {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.7",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "29500",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_HOSTNAME": "node-1",
        "HOROVOD_RANK": "3",
        "HOROVOD_SIZE": "4",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "2",
    }
    assert horovod.defaults(SECOND) == {"HOROVOD_CPU_OPERATIONS": "gloo"}


@pytest.mark.parametrize(
    ("name", "address", "refused"),
    [("Horovod", "fd00::7", True), ("Horovod", "10.0.0.7", False), ("JAX", "fd00::7", False)],
)
def test_horovod_alone_cannot_meet_at_an_address_of_ipv6(name: str, address: str, refused: bool) -> None:
    said = wrong_address(frameworks.find(name), address)
    words = "framework Horovod: its ranks find each other over IPv4 alone, and the address of this pod is fd00::7: use"
    assert said.startswith(words) if refused else said == ""


def test_variables_that_say_where_ranks_are_cannot_be_set_by_a_job() -> None:
    words = "TF_CONFIG must not be set for framework TensorFlow: Trainmaster sets it for each rank"
    assert refusal("TensorFlow", ["TF_CONFIG", "HOME"]).startswith(words)
    assert refusal("TensorFlow", ["HOME"]) == refusal("PyTorch", ["TF_CONFIG"]) == ""


@pytest.mark.parametrize("name", SET_BY_US)
def test_all_that_says_where_ranks_are_is_refused_from_jobs(name: str) -> None:
    framework, first = frameworks.find(name), replace(SECOND, rank=0)
    made = framework.peers(first, ADDRESSES) if framework.addresses else framework.environment(first)
    assert set(made) == set(SET_BY_US[name])
