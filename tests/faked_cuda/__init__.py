"""A machine with CUDA devices that don't exist, for any test: `faked_cuda(2)` returns the variables of processes on it.

Give them to a run, an agent, a zygote or ranks that the test starts: whatever Python starts with them sees the devices.
`site/faked_devices.py` says which calls are imitated.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faked_cuda.site.faked_devices import NUMBER

FakedCuda = Callable[..., dict[str, str]]
SITE = Path(__file__).parent / "site"


@pytest.fixture
def faked_cuda(tmp_path: Path) -> FakedCuda:
    """faked_cuda(devices, visible=None): the variables of a process on such a machine. Runs of one test lock devices in
    one folder, those of two tests in two. `visible`: the user's own CUDA_VISIBLE_DEVICES."""

    def variables(devices: int, visible: str | None = None) -> dict[str, str]:
        runtime = tmp_path / "runtime"
        runtime.mkdir(exist_ok=True)
        path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH", "")]))
        chosen = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        return {NUMBER: str(devices), "PYTHONPATH": path, "XDG_RUNTIME_DIR": str(runtime), **chosen}

    return variables
