"""The devices of this machine as NVML tells them, and the locks that keep two runs apart."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import WriteJob
from trainmaster_operator.cli.job_files import validate_job
from trainmaster_operator.cli.main import main
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.this_machine import cuda_devices
from trainmaster_operator.cli.this_machine.cuda_devices import DeviceLocks
from trainmaster_operator.cli.this_machine.device_plan import Device, named

FOUR = [Device(str(number), f"GPU-{number}") for number in range(4)]


class Nvml:
    """A driver with some devices, of which this process may not use all."""

    def __init__(self, uuids: list[str | None], starts: int = 0) -> None:
        self.uuids, self.starts, self.running = uuids, starts, False

    def nvmlInit_v2(self) -> int:
        self.running = self.starts == 0
        return self.starts

    def nvmlShutdown(self) -> int:
        self.running = False
        return 0

    def nvmlDeviceGetCount_v2(self, number: Any) -> int:
        number._obj.value = len(self.uuids)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return 4 if self.uuids[index.value] is None else 0

    def nvmlDeviceGetUUID(self, handle: ctypes.c_void_p, text: Any, size: ctypes.c_uint) -> int:
        assert handle.value is not None
        text.value = str(self.uuids[handle.value - 1]).encode()
        return 0


@pytest.fixture(autouse=True)
def no_other_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda_devices, "OTHER_DRIVER", tmp_path / "kfd")


def test_devices_are_those_that_nvml_lets_this_process_use(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(["GPU-a", None, "GPU-c"])
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    assert cuda_devices.present({}) == [Device("0", "GPU-a"), Device("1", "GPU-c")]
    assert cuda_devices.present({"CUDA_VISIBLE_DEVICES": "1"}) == [Device("1", "GPU-c")]
    assert not nvml.running


def test_a_machine_without_a_driver_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert cuda_devices.present({}) == []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Nvml(["GPU-a"], starts=9))
    assert cuda_devices.present({}) == []


def test_devices_of_another_maker_are_not_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Nvml([]))
    (tmp_path / "kfd").touch()
    assert cuda_devices.present({}) is None


def test_two_runs_do_not_share_devices(tmp_path: Path) -> None:
    first, second, third = (DeviceLocks(tmp_path / "locks") for _ in range(3))
    assert first.take(FOUR, 2) == FOUR[:2]
    assert second.take(FOUR, 4) == FOUR[2:]
    assert third.take(FOUR, 1) == []
    first.release()
    assert third.take(FOUR, 1) == FOUR[:1]
    second.release()
    third.release()


def test_a_device_is_locked_whatever_it_is_called(tmp_path: Path) -> None:
    first, second = DeviceLocks(tmp_path), DeviceLocks(tmp_path)
    uuids = [device.uuid for device in FOUR]
    first.take(named(uuids, "2"), 1)
    assert [device.name for device in second.take(named(uuids, "GPU-2,GPU-3"), 2)] == ["GPU-3"]
    first.release()
    second.release()


def test_the_devices_of_a_run_that_was_killed_are_free(tmp_path: Path) -> None:
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        DeviceLocks(tmp_path).take(FOUR, 4)
        os.write(tell, b"held")
        signal.pause()
        os._exit(1)
    assert os.read(told, 4) == b"held"
    locks = DeviceLocks(tmp_path)
    try:
        assert locks.take(FOUR, 4) == []
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(told)
        os.close(tell)
    assert locks.take(FOUR, 4) == FOUR
    locks.release()


def test_while_a_run_chooses_no_other_does(tmp_path: Path) -> None:
    order: list[str] = []

    def choose() -> None:
        with DeviceLocks(tmp_path).choosing():
            order.append("the other")

    other = threading.Thread(target=choose)
    with DeviceLocks(tmp_path).choosing():
        other.start()
        other.join(0.05)  # it would have chosen by now
        order.append("this one")
    other.join()
    assert order == ["this one", "the other"]


def test_locks_that_cannot_lie_where_they_should_are_refused(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("a file")
    with pytest.raises(Refusal, match=r"locks/GPU-0.lock: the lock of a device can't be opened: .*XDG_RUNTIME_DIR"):
        DeviceLocks(tmp_path / "locks").take(FOUR, 1)


def test_locks_lie_in_the_users_runtime_folder_or_below_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cuda_devices.lock_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "trainmaster" / "devices"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(cuda_devices.tempfile, "gettempdir", lambda: str(tmp_path))
    assert cuda_devices.lock_folder({}) == tmp_path / f"trainmaster-devices-{os.getuid()}"


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Device]:
    """This machine has two, and locks of its own."""
    monkeypatch.setattr(cuda_devices, "uuids", lambda: ["GPU-0", "GPU-1"])
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    return FOUR[:2]


def job_of(write_job: WriteJob, device: str, ranks: int) -> str:
    layout = {"spec__training__parallelism": {}, "spec__workers": {"replicas": ranks}}
    return str(write_job(spec__training__device=device, **layout))


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (
            "CUDA",
            "CUDA needs a device for each rank, and there are 2 CUDA devices here for 4 ranks; use Auto or CPU",
        ),
        ("MPS", "MPS cannot be used, because losses are summed in float64, which MPS does not have; use CPU"),
    ],
)
@pytest.mark.usefixtures("two_devices")
def test_validate_and_run_refuse_a_device_that_is_not_there(
    write_job: WriteJob, capsys: pytest.CaptureFixture[str], device: str, words: str
) -> None:
    path = job_of(write_job, device, 4)
    for command in ("validate", "run"):
        assert main([command, path]) == 2
        told = capsys.readouterr().err.removesuffix("\n").removesuffix(validate_job.LOCAL_ONLY)
        assert re.fullmatch(rf"trainmaster: \S+job.yaml:\d+: spec.training.device: {words}", told)
    assert main(["validate", "--cluster", path]) == (2 if device == "CUDA" else 0)
    asked = capsys.readouterr().err
    assert device == "MPS" or "the first container of the template asks for none" in asked


def test_run_refuses_devices_that_another_run_holds_and_validate_does_not_ask(
    write_job: WriteJob, capsys: pytest.CaptureFixture[str], two_devices: list[Device], tmp_path: Path
) -> None:
    path = job_of(write_job, "CUDA", 2)
    other = DeviceLocks(cuda_devices.lock_folder(os.environ))
    other.take(two_devices, 1)
    assert main(["validate", path]) == 0
    assert main(["run", path]) == 2
    words = "spec.training.device: CUDA needs a device for each rank, and other runs hold 1 of the 2 CUDA devices here"
    assert words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    other.release()
