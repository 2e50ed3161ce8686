"""What happens to process groups that a script has left open, with a stand-in for torch.distributed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

RUN = """
import sys, types
from trainmaster.rank import script_runner
script, backend = sys.argv[1:]
distributed = sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
distributed.is_available = lambda: True
distributed.is_initialized = lambda: backend != "none"
distributed.get_backend = lambda: "undefined"  # as torch's where a script names no backend
distributed.get_backend_config = lambda: backend
distributed.destroy_process_group = lambda: print("closed")
sys.exit(script_runner.run({"kind": "script", "path": script, "args": []}))
"""
SCRIPT = """
import atexit, sys
atexit.register(print, "the script's own end")
{end}
"""


@pytest.mark.parametrize(
    ("backend", "end", "code", "closed"),
    [
        ("cpu:gloo,cuda:gloo", "", 0, True),
        ("cpu:gloo", "", 0, True),
        ("cpu:gloo,cuda:nccl", "", 0, False),
        ("cpu:gloo", "sys.exit()", 0, True),
        ("cpu:gloo", "sys.exit(3)", 3, False),
        ("cpu:gloo", "raise ValueError('wrong')", 1, False),
        ("cpu:nccl,cuda:nccl", "", 0, False),
        ("none", "", 0, False),
    ],
    ids=["it ends", "no backend", "both", "it exits with 0", "it exits with 3", "it raises", "NCCL", "no group"],
)
def test_groups_over_gloo_are_closed_after_a_script_that_ended_well(
    tmp_path: Path, backend: str, end: str, code: int, closed: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(end=end))
    done = subprocess.run([sys.executable, "-c", RUN, script, backend], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines() == ["the script's own end", *(["closed"] if closed else [])]
