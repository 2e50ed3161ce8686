"""The CUDA devices of a local run, and which pod uses which: the task of a device plugin on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""CUDA's default order begins with the fastest device; a run numbers devices as nvidia-smi does."""


class DevicePool:
    """The devices of a run. It must be used from one thread."""

    def __init__(self, devices: Sequence[str] | None, each: int = 0) -> None:
        """`devices`: their names for CUDA_VISIBLE_DEVICES; None: pods see what this process sees. `each`: number of
        devices that a pod has alone; 0: all pods see all devices."""
        self._devices = devices
        self._each = each
        self._taken: dict[str, list[str]] = {}

    def take(self, pod: str) -> Mapping[str, str] | None:
        """Return the variables for the pod with this uid; None while pods that have not ended use the devices it
        needs."""
        if self._devices is None:
            return {}
        if not self._each or not self._devices:
            return {VISIBLE: ",".join(self._devices), **ORDER}
        held = {device for devices in self._taken.values() for device in devices}
        free = [device for device in self._devices if device not in held]
        if len(free) < self._each:
            return None
        self._taken[pod] = free[: self._each]
        return {VISIBLE: ",".join(self._taken[pod]), **ORDER}

    def give_back(self, pod: str) -> None:
        """Release the devices of a pod that has ended. A pod without devices of its own may be given too."""
        self._taken.pop(pod, None)
