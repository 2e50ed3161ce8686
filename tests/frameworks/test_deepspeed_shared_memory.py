"""DeepSpeed's shared memory is freed when its ranks end, however they end."""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

import pytest

from trainmaster.agent.frameworks import deepspeed_shared_memory, find


class TorchBackend:
    """DeepSpeed's: it creates the memory of its rank and opens that of the others."""

    folder: Path
    is_local: bool
    barriers: list[list[str]]

    def __init__(self, backend: str, *, shm_comm_op: object = object()) -> None:
        self.shm_comm_op = shm_comm_op
        if shm_comm_op is not None and self.is_local:
            (self.folder / f"deepspeed_allreduce_buffer_{os.getuid()}_10.0.0.7_29501_1").touch()

    def get_rank(self) -> int:
        return 1

    def barrier(self) -> None:
        self.barriers.append(sorted(path.name for path in self.folder.iterdir()))


@pytest.fixture(params=["DeepSpeed", "PyTorch", "HuggingFace"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(deepspeed_shared_memory, "SHARED_MEMORY", tmp_path)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.7")
    monkeypatch.setenv("MASTER_PORT", "29501")
    fields = {"folder": tmp_path, "is_local": True, "barriers": []}
    module: Any = types.SimpleNamespace(TorchBackend=type("TorchBackend", (TorchBackend,), fields))
    find(request.param).hooks["deepspeed.comm.torch"](module, None)  # type: ignore[arg-type]
    return module.TorchBackend


def test_a_rank_removes_its_own_file_when_all_have_opened_it(backend: Any) -> None:
    prefix = f"deepspeed_allreduce_buffer_{os.getuid()}_10.0.0.7"
    others = [f"{prefix}_29500_1", f"{prefix}_29501_0"]
    for name in others:
        (backend.folder / name).touch()
    backend("gloo")
    assert backend.barriers == [[*others, f"{prefix}_29501_1"]], "nobody can open it later"
    assert sorted(path.name for path in backend.folder.iterdir()) == others


def test_ranks_without_this_memory_do_not_wait_for_each_other(backend: Any) -> None:
    """On a device, or in several pods."""
    backend("nccl", shm_comm_op=None)
    backend.is_local = False
    backend("gloo")
    assert backend.barriers == []
