"""What an agent and its ranks share about injected faults: a folder of the agent, and questions over a socket.

faults.sock     {"fire": id, "rank", "step", "after", "pod"} -> {"go": bool}, where `step` is the step that the rank
                is in, and `after` the last one before it that was seen; {"do": {fault}} -> {"done"} or {"refused"}
armed.json      faults that the pod's ranks look for at each step; it exists only while there are any
disk-full       exists while the disk counts as full
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

SOCKET = "faults.sock"
ARMED = "armed.json"
DISK_FULL = "disk-full"


def folder(pod_uid: str) -> Path:
    """Return the folder in which the agent of the pod `pod_uid` keeps the files above."""
    return Path(tempfile.gettempdir(), f"trainmaster-{pod_uid}")


def ask(path: str | os.PathLike[str], question: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Ask one question over the socket `path` and return the answer, {} if the other side closes the connection.

    Raises OSError, also after `timeout_s` seconds without an answer.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        with short(path) as name:
            connection.connect(name)
        connection.sendall(json.dumps(question).encode() + b"\n")
        with connection.makefile("rb") as replies:
            reply = replies.readline()
    answer: dict[str, Any] = json.loads(reply) if reply else {}
    return answer


class short:
    """A context that gives the path of a socket in a form that the kernel accepts, however deep its folder lies."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def __enter__(self) -> str:
        self._fd = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._fd}/{self._path.name}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
