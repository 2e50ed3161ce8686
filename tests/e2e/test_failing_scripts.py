"""Scripts that can't work: they are told in their own words, and not tried again and again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Outcome, run, script_job

pytestmark = pytest.mark.processes


def run_script(
    folder: Path,
    source: str,
    *arguments: str,
    faults: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
    **spec: Any,
) -> Outcome:
    script = folder / "train.py"
    script.write_text(source)
    job = script_job(folder, ["python", str(script), *arguments], **spec)
    return run(job, folder / "out", faults, options=options)


def test_a_usage_error_fails_the_job_at_once_in_the_words_of_the_program(tmp_path: Path) -> None:
    source = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()\n"
    outcome = run_script(tmp_path, source)
    assert outcome.exit_code == 1, outcome.output
    assert outcome.status["restarts"]["total"] == 0
    words = "ended with exit code 2: train.py: error: the following arguments are required: --data"
    assert outcome.status["lastFailure"]["message"].endswith(f"so a restart would not help: {words}")
    assert "the following arguments are required: --data" in outcome.output


def test_a_typo_on_one_rank_is_not_tried_a_third_time(tmp_path: Path) -> None:
    outcome = run_script(tmp_path, "import os, time\nmodle() if os.environ['RANK'] == '1' else time.sleep(3600)\n")
    assert outcome.exit_code == 1, outcome.output
    assert outcome.status["restarts"]["total"] == 1
    assert "so a third try would not help: NameError: name 'modle'" in outcome.status["lastFailure"]["message"]


def test_a_quiet_run_shows_what_rank_0_printed_only_once_it_has_failed(tmp_path: Path) -> None:
    source = "print('epoch 1')\nprint('epoch 2', flush=True)\nraise SystemExit(7)\n"
    budget = {"budget": {"inPlace": 0, "pod": 0, "full": 0}}
    outcome = run_script(tmp_path, source, options=("--quiet",), replicas=1, recovery=budget)
    assert outcome.exit_code == 1, outcome.output
    told, found, last = outcome.output.partition("The last lines of rank 0, which failed first:\n")
    assert found, outcome.output
    assert "epoch 1" not in told, "the failure itself tells the last line alone"
    assert "  epoch 1\n" in last


def test_a_fault_that_never_fires_is_told_and_is_no_success(tmp_path: Path) -> None:
    outcome = run_script(tmp_path, "print('done')\n", faults=("kill:rank=0,step=2",), replicas=1)
    assert outcome.exit_code == 3, outcome.output
    told = "--fault kill:rank=0,step=2 never happened: the job ended before step 2, and no step of it was seen"
    assert f"trainmaster: {told}" in outcome.output


def test_variables_in_arguments_are_expanded(tmp_path: Path) -> None:
    template = {"spec": {"containers": [{"name": "worker", "env": [{"name": "DATA", "value": "/mnt"}]}]}}
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    words = ["python", str(tmp_path / "train.py"), "--data=$(DATA)/x", "$$(DATA)"]
    template["spec"]["containers"][0] |= {"command": words[:2], "args": words[2:]}
    job = script_job(tmp_path, words, workers={"replicas": 1, "template": template})
    outcome = run(job, tmp_path / "out")
    assert outcome.exit_code == 0, outcome.output
    assert "['--data=/mnt/x', '$(DATA)']" in outcome.output


@pytest.mark.parametrize("limits", [{"memory": "64Mi"}, {}])
def test_a_run_says_at_its_start_that_the_memory_limit_of_its_pods_is_not_enforced(
    tmp_path: Path, limits: dict[str, str]
) -> None:
    command = ["python", "-c", "print(len(bytes(80 << 20)))"]
    container = {"name": "worker", "command": command, "resources": {"limits": limits}}
    workers = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    outcome = run(script_job(tmp_path, command, workers=workers), tmp_path / "out")
    assert outcome.exit_code == 0, outcome.output
    words = "the memory limit of a pod, 64Mi, is not enforced in a run on this machine, only on a cluster"
    assert outcome.output.count(words) == len(limits), outcome.output


def test_ranks_with_different_versions_of_torch_enter_no_collective_and_are_not_restarted(tmp_path: Path) -> None:
    source = (
        "import os, torch, torch.distributed as dist\n"
        "if os.environ['RANK'] == '1': torch.__version__ = '2.13.0'\n"
        "try:\n    dist.init_process_group('gloo')\nexcept Exception as error:\n    print('goes on alone')\n"
        "print('enters its first collective', flush=True)\ndist.all_reduce(torch.ones(1))\n"
    )
    outcome = run_script(tmp_path, source)
    assert outcome.exit_code == 1, outcome.output
    failure = outcome.status["lastFailure"]
    assert (failure["cause"], outcome.status["restarts"]["total"]) == ("ConfigError", 0)
    assert "so a restart would not help: torch 2." in failure["message"]
    assert all(f"in script-worker-{slot}-0" in failure["message"] for slot in range(2))
    assert "2.13.0 in script-worker-1-0" in failure["message"]
    logs = "".join(path.read_text() for path in (tmp_path / "out" / "logs").glob("script-worker-*"))
    assert not any(words in logs for words in ("enters its first collective", "goes on alone", "Traceback"))
