"""The resources that a pod has used, as its agent measures them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Usage:
    """Resources that a pod has used. Counters start at 0 with the agent and never fall. None: the agent cannot measure
    it."""

    cpu_s: float | None = None  # CPU seconds of the container, or of the ranks where pods share a machine
    received_bytes: int | None = None  # over all network devices of the pod but the loopback
    sent_bytes: int | None = None
    accelerator_ratio: float | None = None  # how busy the pod's accelerators are now, 0 to 1, on average
    accelerator_bytes: int | None = None  # bytes of their memory that are in use now, summed
