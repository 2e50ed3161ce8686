"""Whether a pod has an accelerator, as its device files say. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping

_DEVICE_FILES = (
    *("/dev/nvidiactl", "/dev/kfd", "/dev/accel0", "/dev/accel", "/dev/dxg", "/dev/dri/renderD128"),
    *("/dev/neuron0", "/dev/davinci_manager", "/dev/cambricon_ctl", "/dev/vfio/0"),
)


def has_accelerator(env: Mapping[str, str]) -> bool:
    """Return True if this pod has the device files of an accelerator, and its ranks may use it."""
    hidden = env.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles")
    return not hidden and any(os.path.exists(path) for path in _DEVICE_FILES)
