"""The lock of torch's compiler of extensions, after a rank was killed while it compiled."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trainmaster.agent.frameworks import find


@pytest.fixture
def real() -> ModuleType:
    """torch's own module, without an import of torch. torch 2.15 still has it, and does not use it."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    spec = importlib.util.spec_from_file_location("file_baton", Path(torch.origin).parent / "utils" / "file_baton.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hook(module: ModuleType, framework: str = "DeepSpeed") -> Any:
    """Return the lock's class as a rank of a framework has it."""
    find(framework).hooks["torch.utils.file_baton"](module, None)  # type: ignore[arg-type]
    return module.FileBaton


def die_with(baton: Any) -> None:
    """Let another process take a lock and be killed."""
    pid = os.fork()
    if pid == 0:
        baton.try_acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert os.path.exists(baton.lock_file_path)


@pytest.mark.parametrize("framework", ["PyTorch", "DeepSpeed", "HuggingFace", "Horovod"])
def test_the_lock_of_a_killed_rank_is_taken_by_the_next_one(tmp_path: Path, real: ModuleType, framework: str) -> None:
    kind = hook(real, framework)
    die_with(kind(str(tmp_path / "lock")))
    next_one = kind(str(tmp_path / "lock"))
    assert next_one.try_acquire()
    assert not kind(str(tmp_path / "lock")).try_acquire(), "as long as that one lives"
    next_one.release()
    assert kind(str(tmp_path / "lock")).try_acquire()


def test_a_lock_of_a_process_outside_of_a_job_is_left(tmp_path: Path, real: ModuleType) -> None:
    """Whether that one lives can't be known."""
    die_with(real.FileBaton(str(tmp_path / "lock")))
    assert not hook(real)(str(tmp_path / "lock")).try_acquire()


def test_a_rank_that_looks_while_the_owner_releases_its_lock_does_not_take_it(
    tmp_path: Path, real: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner would then remove the lock of that rank, and two ranks would compile into one folder."""
    kind = hook(real)
    owner, other = kind(str(tmp_path / "lock")), kind(str(tmp_path / "lock"))
    assert owner.try_acquire()
    remove, taken = os.remove, []

    def look_and_remove(path: str) -> None:
        monkeypatch.setattr(os, "remove", remove)
        taken.append(other.try_acquire())
        remove(path)

    monkeypatch.setattr(os, "remove", look_and_remove)
    owner.release()
    assert taken == [False]
    assert not (tmp_path / "lock").exists()
    assert other.try_acquire()
