"""The programme of the first half hour on a GPU at toy size, called by `test_cuda.py` where work can be forked."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cuda import child, programme


def run(words: list[str], out: str) -> dict[str, Any]:
    """{code, printed, rows} of a whole command; rows: what it has written down, by name."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = programme.main([*words, "--out", out, "--seconds", "3600"])
    lines = Path(out, f"{words[0]}.jsonl").read_text().splitlines()
    rows = {row["row"]: row for row in map(json.loads, lines)}
    return {"code": code, "printed": printed.getvalue(), "rows": rows}


def _work(ends: str) -> str:
    print("its last words", flush=True)
    if ends == "exception":
        raise ValueError("broken")
    if ends == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    if ends == "exit":
        sys.exit(3)
    if ends == "hang":
        os.fork()  # a child that has the other end of the pipe too
        signal.pause()
    return ends


def ended(ends: str, folder: str) -> str:
    """What becomes of work that ends so."""
    try:
        return str(child.run(partial(_work, ends), Path(folder, "log"), 0.2 if ends == "hang" else 60.0))
    except child.WorkFailed as reason:
        return str(reason)
