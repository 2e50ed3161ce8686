"""torch's promise that an agent serves a store holds for the agent's own address alone."""

from __future__ import annotations

import multiprocessing.spawn
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import trainmaster
from trainmaster.rank import rendezvous as own_store


@pytest.fixture
def rendezvous(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """In place of torch's module, which a rank of an agent has imported."""
    module = SimpleNamespace(_torchelastic_use_agent_store=lambda: True)
    monkeypatch.setitem(sys.modules, "torch.distributed.rendezvous", module)  # type: ignore[arg-type]
    monkeypatch.setattr(multiprocessing.spawn, "get_preparation_data", multiprocessing.spawn.get_preparation_data)
    for name, value in {"TRAINMASTER_STORE": "10.0.0.1:29400", "MASTER_ADDR": "10.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    own_store.install()
    return module


@pytest.mark.parametrize(("port", "served"), [("29400", True), ("12355", False)])
def test_a_store_is_awaited_only_where_the_agent_serves_one(
    rendezvous: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, port: str, served: bool
) -> None:
    monkeypatch.setenv("MASTER_PORT", port)
    assert rendezvous._torchelastic_use_agent_store() is served


STARTS = """
import multiprocessing, sys

class Argument:
    def __setstate__(self, state):
        self.corrected_before = any(type(finder).__name__ == "_Finder" for finder in sys.meta_path)

    def __getstate__(self):
        return True

def work(argument):
    print("corrected:", argument.corrected_before, flush=True)

if __name__ == "__main__":
    from trainmaster.rank import rendezvous
    rendezvous.install()
    process = multiprocessing.get_context(sys.argv[1]).Process(target=work, args=(Argument(),))
    process.start()
    process.join()
"""


@pytest.mark.processes
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_that_a_script_starts_learns_it_before_it_runs_anything(tmp_path: Path, method: str) -> None:
    (tmp_path / "script.py").write_text(STARTS)
    paths = [str(Path(trainmaster.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "TRAINMASTER_STORE": "10.0.0.1:29400", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "script.py", method]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "corrected: True\n", done.stderr
