"""How many ranks a launcher was told to start, against what the job says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.jobs import PYTORCH, TRAINMASTER, job
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.api.validation import launch_command
from trainmaster_operator.api.validation.job_validation import validate

CONTAINERS = "spec__workers__template__spec__containers"
COMMAND = "spec.workers.template.spec.containers[0].command"


def of(command: list[str], devices: int = 0, **workers: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "worker", "command": command}
    if devices:
        container["resources"] = {"limits": {"nvidia.com/gpu": devices}}
    document = job(PYTORCH, **{CONTAINERS: [container]})
    document["spec"]["workers"].update(workers)
    return document


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (of(["torchrun", "--nproc-per-node=4", "t.py"]), 4),
        (of(["accelerate", "launch", "--num_processes=6", "t.py"], replicas=2), 3),
        (of(["horovodrun", "-np", "6", "python", "t.py"], replicas=2), 3),
        (of(["horovodrun", "-np", "3", "python", "t.py"], replicas=2), None),
        (of(["torchrun", "--nproc-per-node=gpu", "t.py"], devices=8), 8),
        (of(["torchrun", "t.py"]), None),
        (of(["python", "t.py"]), None),
        (of(["torchrun", "--nproc-per-node=4", "t.py"], ranksPerPod=2), 2),
    ],
)
def test_a_job_has_as_many_ranks_as_its_launcher_was_told_unless_it_says_so_itself(
    document: dict[str, Any], expected: int | None
) -> None:
    launch_command.complete(document["spec"])
    assert document["spec"]["workers"].get("ranksPerPod") == expected


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["torchrun", "--nproc_per_node=2", "t.py"], "--nproc-per-node"),
        (["deepspeed", "--num_gpus=2", "t.py"], "--num_gpus"),
        (["accelerate", "launch", "--num_processes=2", "t.py"], ""),
        (["horovodrun", "-np", "2", "python", "t.py"], ""),
        (["torchrun", "--of-a-newer-torch", "t.py"], ""),
        (["python", "t.py"], ""),
    ],
)
def test_an_option_for_each_pod_is_named(command: list[str], option: str) -> None:
    document = of(command)
    launch_command.complete(document["spec"])
    assert launch_command.option_for_each_pod(JobSpec.model_validate(document["spec"])) == option


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (
            of(["torchrun", "--nproc-per-node=4", "t.py"], ranksPerPod=2),
            "torchrun --nproc-per-node=4, but workers.ranksPerPod is 2: write the same number in both",
        ),
        (of(["torchrun", "--nproc-per-node=many", "t.py"]), "--nproc-per-node=many: a number is expected"),
        (
            of(["accelerate", "launch", "--num_processes", "3", "t.py"], replicas=2),
            "accelerate launch --num_processes=3, but the job has 2 ranks",
        ),
        (
            of(["torchrun", "--nproc-per-node=gpu", "t.py"], devices=8, ranksPerPod=4),
            "torchrun counts 8 devices in each pod, but workers.ranksPerPod is 4",
        ),
        (of(["mpirun", "t.py"]), "mpirun starts processes of its own"),
        (of(["horovodrun", "-np", "3", "python", "t.py"], replicas=2), "horovodrun -np 3, but the job has 2 ranks"),
        (of(["deepspeed", "--num_gpus=8", "t.py"], ranksPerPod=4), "--num_gpus=8, but workers.ranksPerPod is 4"),
    ],
)
def test_a_launcher_that_was_told_something_else_is_refused(document: dict[str, Any], words: str) -> None:
    problem = next(str(each) for each in validate(document))
    assert problem.startswith(f"{COMMAND}: ")
    assert words in problem


def test_devices_are_not_counted_where_nobody_says_how_many_there_are() -> None:
    told = list(launch_command.uncounted(of(["torchrun", "--nproc-per-node", "auto", "t.py"])["spec"]))
    assert [words for _, words in told] == [
        "torchrun --nproc-per-node=auto: say in workers.ranksPerPod how many ranks each pod has"
    ]
    assert not list(launch_command.uncounted(of(["torchrun", "--nproc-per-node=auto", "t.py"], ranksPerPod=2)["spec"]))


def test_an_option_that_no_table_has_is_left_to_the_launchers_own_parser() -> None:
    assert validate(of(["torchrun", "--of-a-newer-torch", "t.py"])) == []


def test_a_restart_command_is_read_as_the_command_is() -> None:
    assert validate(of(["python", "t.py"], restartCommand=["python", "t.py", "--resume"])) == []
    problem = str(validate(of(["python", "t.py"], restartCommand=["mpirun", "t.py"]))[0])
    assert problem.startswith("spec.workers.restartCommand: mpirun starts processes of its own")


def test_a_restart_command_is_refused_where_our_own_trainer_goes_on_by_itself() -> None:
    problem = str(validate(job(TRAINMASTER, spec__workers={"replicas": 4, "restartCommand": ["python", "t.py"]}))[0])
    assert problem.startswith("spec.workers.restartCommand: framework Trainmaster continues from its checkpoints")
