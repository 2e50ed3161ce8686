"""Numbers on their way between the host and a device, for which neither of them waits."""

from __future__ import annotations

import torch


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return `values` of the host on `device`.

    Operations on the device wait for the copy; the host does not wait, because the values are copied from pinned
    memory.
    """
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


class Reading:
    """A few numbers of a step on their way from the device to the host."""

    def __init__(self, values: torch.Tensor) -> None:
        values = values.detach()
        self._event = None
        if values.device.type == "cuda":
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = values.to("cpu", copy=True)

    def arrived(self) -> bool:
        """Return True if the numbers are on the host."""
        return self._event is None or self._event.query()

    def values(self) -> list[float]:
        """Return the numbers. It waits for the device if they have not arrived."""
        if self._event is not None:
            self._event.synchronize()
        return [float(value) for value in self._host.reshape(-1)]
