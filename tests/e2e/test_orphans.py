"""A test run that is killed in the middle of a whole run leaves nothing of it behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests import tied
from tests.e2e.harness import LIMIT_S, small_demo_job
from trainmaster_operator.local import process_tree

ROOT = Path(__file__).parents[2]
RUNS = {
    "run": "from tests.e2e.harness import run; run(Path(sys.argv[1]), Path(sys.argv[2]))",
    "prove": "from tests.e2e.test_prove import prove; prove(Path(sys.argv[1]))",
}


@pytest.mark.processes
@pytest.mark.parametrize("kind", RUNS)
def test_a_whole_run_ends_with_a_test_run_that_is_killed(tmp_path: Path, kind: str) -> None:
    job = small_demo_job(tmp_path, 2, {"dpShard": 2}, 1000)
    program = f"import sys; from pathlib import Path; {RUNS[kind]}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "trainer")])}
    with tied.popen([sys.executable, "-c", program, str(job), str(tmp_path / "out")], env=environment) as run:
        try:
            deadline = time.monotonic() + LIMIT_S
            while sum(is_agent(process.pid) for process in below(run.pid)) < 2:
                assert time.monotonic() < deadline, below(run.pid)
                time.sleep(0.02)
            before = below(run.pid)
        finally:
            run.kill()  # also when something above fails: leaving this block waits for its end
    deadline = time.monotonic() + LIMIT_S
    while left := living(before):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def below(pid: int) -> list[process_tree.Process]:
    return process_tree.below([pid], process_tree.table())


def is_agent(pid: int) -> bool:
    try:
        return b"trainmaster.agent\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def living(of: list[process_tree.Process]) -> list[int]:
    """Those that haven't ended. A pid counts with its start: another process may have it by now."""
    now = process_tree.table()
    started = {(p.pid, p.started) for p in now.values() if p.state != "Z"}
    return [p.pid for p in of if (p.pid, p.started) in started]
