"""Which CUDA devices of this machine a run gets, and what a person is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.jobs import PYTORCH, TRAINMASTER, job
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.cli.this_machine.device_plan import Device, DevicePlan, Need, NoDevices, decide, named, need

UUIDS = [f"GPU-{number}a" for number in range(8)]
ON_CPU = ", so all ranks compute on the CPU"


def spec(base: dict[str, Any] = PYTORCH, **changes: Any) -> JobSpec:
    return JobSpec.model_validate(job(base, **changes)["spec"])


def with_devices(amount: Any, spares: int = 0) -> JobSpec:
    container = {"name": "worker", "command": ["python"], "resources": {"limits": {"nvidia.com/gpu": amount}}}
    template = {"spec": {"containers": [container]}}
    return spec(spec__workers={"replicas": 2, "spares": spares, "template": template})


def asked(device: str, ranks: int, **workers: int) -> JobSpec:
    changes = {"spec__training__device": device, "spec__training__parallelism": {}}
    return spec(TRAINMASTER, spec__workers={"replicas": ranks, **workers}, **changes)


def plan(spec: JobSpec, present: int, held: int = 0, **how: bool) -> DevicePlan:
    """What a run gets on a machine with so many devices, of which other runs hold the first."""
    devices = named(UUIDS[:present], None)
    needed = need(spec, **how)
    return decide(needed, devices, devices[held:][: needed.most if needed is not None else None])


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_run_gets_a_device_for_each_rank(ranks: int) -> None:
    names = tuple(str(number) for number in range(ranks))
    assert plan(asked("Auto", ranks), present=8).names == names
    assert plan(spec(spec__workers__replicas=ranks), present=8).names == names


@pytest.mark.parametrize(
    ("ranks", "present", "held", "words"),
    [
        (4, 1, 0, "there is 1 CUDA device here for 4 ranks"),
        (4, 2, 0, "there are 2 CUDA devices here for 4 ranks"),
        (2, 2, 1, "other runs hold 1 of the 2 CUDA devices here, which leaves 1 for 2 ranks"),
        (1, 8, 8, "other runs hold 8 of the 8 CUDA devices here, which leaves 0 for 1 rank"),
    ],
)
def test_with_fewer_devices_than_ranks_none_is_seen_and_the_run_says_why(
    ranks: int, present: int, held: int, words: str
) -> None:
    assert plan(asked("Auto", ranks), present, held) == DevicePlan((), words + ON_CPU)


def test_a_run_takes_the_devices_that_others_leave_and_says_so() -> None:
    assert plan(asked("Auto", 2), present=4, held=2) == DevicePlan(
        ("2", "3"), "CUDA devices 2, 3; another run holds devices 0, 1"
    )


def test_without_any_device_there_is_nothing_to_tell() -> None:
    assert plan(asked("Auto", 4), present=0) == DevicePlan()
    assert decide(need(asked("Auto", 4)), None, []) == DevicePlan(), "they can't be counted here"


def test_a_job_for_the_cpu_takes_none() -> None:
    assert plan(asked("CPU", 4), present=8) == DevicePlan(())


@pytest.mark.parametrize(
    ("device", "present", "held", "words"),
    [
        ("CUDA", 0, 0, "CUDA needs a device for each rank, and there are 0 CUDA devices here for 4 ranks"),
        ("CUDA", 8, 6, "CUDA needs a device for each rank, and other runs hold 6 of the 8 CUDA devices here"),
        ("MPS", 8, 0, "MPS cannot be used, because losses are summed in float64"),
    ],
)
def test_a_device_that_is_asked_for_and_not_to_be_had_is_refused(
    device: str, present: int, held: int, words: str
) -> None:
    with pytest.raises(NoDevices, match=f"^spec.training.device: {words}"):
        plan(asked(device, 4), present, held)


def test_each_pod_has_the_devices_that_its_template_asks_for() -> None:
    assert plan(with_devices(2), present=8) == DevicePlan(("0", "1", "2", "3"), "CUDA devices 0, 1, 2, 3", 2)
    assert plan(with_devices("2", spares=1), present=8).names == ("0", "1", "2", "3", "4", "5")
    none = plan(with_devices(2), present=0)
    assert none == DevicePlan((), "there are 0 CUDA devices here for 2 pods with 2 each" + ON_CPU, 2)
    assert plan(with_devices(0), present=8) == DevicePlan(())


def test_pods_that_are_nodes_have_devices_of_their_own() -> None:
    scripts = spec(spec__workers={**PYTORCH["spec"]["workers"], "replicas": 2, "ranksPerPod": 2})
    assert plan(scripts, present=8, pods_as_nodes=True) == DevicePlan(
        ("0", "1", "2", "3"), "CUDA devices 0, 1, 2, 3", 2
    )
    assert plan(scripts, present=0, pods_as_nodes=True) == DevicePlan(each=2)


def test_an_amount_that_is_none_is_named() -> None:
    words = r"containers\[0\]\.resources\.limits\.nvidia\.com/gpu: a whole number is expected, not 'two'"
    with pytest.raises(NoDevices, match=words):
        need(with_devices("two"))
    with pytest.raises(NoDevices, match="a whole number is expected, not '²'"):  # It is a digit and no number.
        need(with_devices("²"))


def test_a_template_that_names_its_devices_decides_itself() -> None:
    container = {"name": "w", "command": ["python"], "env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "5"}]}
    own = spec(spec__workers={"replicas": 2, "template": {"spec": {"containers": [container]}}})
    assert plan(own, present=8) == DevicePlan()


def test_an_elastic_job_takes_what_it_may_grow_to_and_starts_with_what_it_needs() -> None:
    elastic = asked("Auto", 2, max=4)
    assert need(elastic) == Need(2, 4, 0, "for 2 ranks")
    assert plan(elastic, present=8).names == ("0", "1", "2", "3")
    assert plan(elastic, present=8, held=5).names == ("5", "6", "7")


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("3,1", ["3", "1"]),
        (" 2 , 0", ["2", "0"]),
        ("", []),
        ("-1", []),
        ("1,9,0", ["1"]),
        ("1,1", []),
        ("GPU-2", ["GPU-2"]),
        ("GPU-", []),
        ("MIG-7,0", ["MIG-7", "0"]),
    ],
)
def test_the_users_own_choice_is_read_as_cuda_reads_it(visible: str, expected: list[str]) -> None:
    assert [device.name for device in named(UUIDS, visible)] == expected


def test_a_device_is_the_same_one_by_any_name() -> None:
    assert named(UUIDS, "GPU-3a") == [Device("GPU-3a", "GPU-3a")]
    assert named(UUIDS, "3") == [Device("3", "GPU-3a")]
