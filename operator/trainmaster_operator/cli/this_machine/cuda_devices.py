"""The CUDA devices of this machine, and which of them other runs hold.

They are counted with NVML, the library below nvidia-smi: it comes with the driver, sees only what a container may use,
and creates no CUDA context, which would use memory of a device as long as this process lives. nvidia-smi is missing in
many images, and /proc/driver/nvidia/gpus lists devices that a container does not have.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from trainmaster_operator.cli.refusal import Refusal, why
from trainmaster_operator.cli.this_machine.device_plan import Device, named
from trainmaster_operator.local.pod_cuda_devices import VISIBLE

NVML = "libnvidia-ml.so.1"
OTHER_DRIVER = Path("/dev/kfd")
"""Exists if there are AMD devices, which torch also calls CUDA devices and NVML does not know."""
_UUID_BYTES = 96


def present(environ: Mapping[str, str]) -> list[Device] | None:
    """Return the devices that a process with this environment sees; None if that cannot be known without CUDA."""
    found = uuids()
    if not found and OTHER_DRIVER.exists():
        return None
    return named(found, environ.get(VISIBLE))


def uuids() -> list[str]:
    """Return the UUIDs of this machine's NVIDIA devices, in the order of their PCI buses; [] without a driver."""
    try:
        nvml = ctypes.CDLL(NVML)
    except OSError:
        return []
    if nvml.nvmlInit_v2() != 0:
        return []
    try:
        return list(_uuids(nvml))
    finally:
        nvml.nvmlShutdown()


def _uuids(nvml: ctypes.CDLL) -> Iterator[str]:
    number = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(number)) != 0:
        return
    for index in range(number.value):
        handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
        # A device that this process may not use has no handle.
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
            continue
        if nvml.nvmlDeviceGetUUID(handle, text, ctypes.c_uint(_UUID_BYTES)) == 0:
            yield text.value.decode()


class DeviceLocks:
    """The devices that this process holds. The system releases them when the process ends in any way."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the directory with the locks of all runs of this user, one file for each device."""
        self._folder = folder
        self._held: list[int] = []

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """Wait until no other run chooses its devices. Two runs that choose at the same time could each take a part
        of what both need."""
        fd = self._open("choosing")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def take(self, devices: Sequence[Device], most: int) -> list[Device]:
        """Return the first `most` of the devices that no other process holds, and hold them. Raise Refusal."""
        free: list[Device] = []
        for device in devices:
            if len(free) == most:
                break
            fd = self._open(device.uuid)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                continue
            self._held.append(fd)
            free.append(device)
        return free

    def release(self) -> None:
        """Release the devices."""
        while self._held:
            os.close(self._held.pop())

    def _open(self, name: str) -> int:
        path = self._folder / f"{name.replace('/', '-')}.lock"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise Refusal(
                f"{path}: the lock of a device can't be opened: {why(error)}; XDG_RUNTIME_DIR may name another folder"
            ) from None


def lock_folder(environ: Mapping[str, str]) -> Path:
    """Return the directory in which the runs of this user lock devices: the user's runtime directory, or else one
    below /tmp."""
    user = os.getuid()
    for runtime in (environ.get("XDG_RUNTIME_DIR"), f"/run/user/{user}"):
        if runtime and os.access(runtime, os.W_OK | os.X_OK):
            return Path(runtime) / "trainmaster" / "devices"
    return Path(tempfile.gettempdir()) / f"trainmaster-devices-{user}"
