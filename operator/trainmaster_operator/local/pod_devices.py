"""The CUDA devices of a local run, and which pod has which: what a device plugin is on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""CUDA's own order begins with the fastest device; the run numbers devices as nvidia-smi does."""


class DevicePool:
    """Devices of a run. Not safe for several threads."""

    def __init__(self, devices: Sequence[str] | None, each: int = 0) -> None:
        """`devices`: their names for CUDA_VISIBLE_DEVICES; None: pods see what this process sees. `each`: how many a
        pod has to itself; 0: all pods see all."""
        self._devices = devices
        self._each = each
        self._taken: dict[str, list[str]] = {}

    def take(self, pod: str) -> Mapping[str, str] | None:
        """Return the variables of the pod with this uid; None: pods that have not ended hold the devices it needs."""
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
        """The pod has ended. A pod that had no devices of its own gives none back."""
        self._taken.pop(pod, None)
