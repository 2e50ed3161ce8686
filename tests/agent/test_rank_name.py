"""The name under which `ps -e` and `pgrep` show a rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUN = """
import json, sys
from trainmaster.rank import script_runner
raise SystemExit(script_runner.run(json.loads(sys.argv[1])))
"""
SCRIPT = """
import multiprocessing, os
def tell(who):
    print(who, open(f"/proc/{os.getpid()}/comm").read(), end="", flush=True)
tell("rank:")
worker = multiprocessing.get_context("fork").Process(target=tell, args=("worker:",))
worker.start()
worker.join()
"""


@pytest.mark.parametrize("kind", ["script", "module"])
def test_a_rank_is_named_by_its_number_and_its_script_and_its_workers_are_not(tmp_path: Path, kind: str) -> None:
    (tmp_path / "pretrain.py").write_text(SCRIPT)
    named: dict[str, Any] = {"script": {"path": "./pretrain.py"}, "module": {"name": "pretrain"}}[kind]
    entry = json.dumps({"kind": kind, "args": [], **named})
    environment = {**os.environ, "RANK": "1"}
    former = Path(sys.executable).name
    ended = subprocess.run(
        [sys.executable, "-c", RUN, entry], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    name = "rank 1 pretrain.py"[:15] if kind == "script" else "rank 1 pretrain"
    assert ended.stdout.splitlines() == [f"rank: {name}", f"worker: {former[:15]}"], ended.stderr
