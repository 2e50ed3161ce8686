"""`python -m trainmaster.agent profile …`: requests in one pod to record steps, and the records of ranks of scripts.

    profile STEPS [IDENTITY]           rank 0 of the built-in trainer, or each rank of a script, records its next steps
    profile collect IDENTITY SECONDS   waits up to SECONDS for these ranks, and writes their records to stdout
    profile withdraw IDENTITY          removes the request and its records

`collect` writes one line of JSON, {"waiting": bool, "marks": {rank: {"state", "round", "words"}}, "files": [[name,
bytes], …]}, and then the files in this order. Anybody who may run a command in the pod may call this.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from trainmaster.contract.wire import environment, fault_protocol, profile_records, profile_request

_LOOKS_EVERY_S = 0.2  # the standard library hears of no file that goes
_AT_ONCE = 1 << 20  # bytes


def command(words: list[str]) -> int:
    """Carry out one of the commands above, and return the exit code."""
    folder = fault_protocol.folder(os.environ.get(environment.POD_UID, ""))
    try:
        if words[:1] == ["collect"]:
            collect(folder, _identity(words[1]), float(words[2]), sys.stdout.buffer)
        elif words[:1] == ["withdraw"]:
            withdraw(folder, _identity(words[1]))
        else:
            request(folder, int(words[0]), _identity(words[1]) if words[1:] else "")
    except (OSError, ValueError, IndexError) as error:
        print(f"no agent of this pod can be asked: {error}", file=sys.stderr)
        return 1
    return 0


def request(folder: Path, steps: int, identity: str) -> None:
    """Write a request, and print what happens to it. Raises OSError."""
    profile_request.ask(folder, steps, identity)
    print(f"the next {steps} steps are recorded; rank 0's log says when, and where the page lies")


def collect(folder: Path, identity: str, seconds: float, output: BinaryIO) -> None:
    """Wait until no rank of this pod is left that has to record, and write their records. Raises OSError."""
    deadline = time.monotonic() + seconds
    while (waiting := _stands(folder, identity)) and time.monotonic() < deadline:
        time.sleep(_LOOKS_EVERY_S)
    files = [] if waiting else [(path, path.stat().st_size) for path in profile_records.files_of(folder, identity)]
    marks = {rank: asdict(mark) for rank, mark in profile_records.read_marks(folder, identity).items()}
    header = {"waiting": waiting, "marks": marks, "files": [(path.name, size) for path, size in files]}
    output.write(json.dumps(header).encode() + b"\n")
    for path, _ in files:
        with open(path, "rb") as file:
            shutil.copyfileobj(file, output, _AT_ONCE)
    output.flush()


def withdraw(folder: Path, identity: str) -> None:
    """Remove a request and its records. Raises OSError."""
    profile_request.take_away(folder / profile_request.FILE, identity)
    profile_records.remove(folder, identity)


def _stands(folder: Path, identity: str) -> bool:
    """Return True if the request is still there. The last rank that has recorded removes it."""
    found = profile_request.read(folder / profile_request.FILE)
    return found is not None and found.identity == identity


def _identity(word: str) -> str:
    if not profile_request.is_identity(word):
        raise ValueError(f"{word} is not the identity of a request")
    return word
