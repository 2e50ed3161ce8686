"""Keeps for all workers of a run what each of them would have to import for itself: one process for each run of tests.

A worker asks at a socket for one of two things, and what is asked for first starts it:

- `zygote`: a zygote that serves this machine's agents (`tests/machine_zygote.py`). The answer has its socket and its
  log, and says whether it has ended.
- `ranks`: a fork of the process that worlds of ranks are forked from (`tests/trainer/ranks.py`). The request has the
  fork's end of a channel; the answer has its pid.

The controller of pytest-xdist starts this program, `python -m tests.suite.keeper FOLDER DESCRIPTOR`, with a folder for
what is kept and with the socket on which it listens, and ends it. It imports nothing heavy itself: many runs ask for
nothing.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests import tied
from trainmaster.contract.wire.channel import Channel

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "tests.suite.keeper")
END_S = 10.0
"""After so many seconds something that should have ended hangs."""

WORKER_INPUT = "suite_keeper"
"""What the path of the socket is called in what pytest-xdist tells a worker."""

kept: Path | None = None
"""The socket of the keeper of this run; None: there are no workers. The plugin sets it in each worker."""


class Keeper:
    """Starts what is asked for first, and tells later ones where it is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._selector = selectors.DefaultSelector()
        self._zygote: subprocess.Popen[bytes] | None = None
        self._ranks: Channel | None = None
        self._ranks_process: subprocess.Popen[bytes] | None = None
        self._waiting: deque[Channel] = deque()
        """Those that asked for ranks and have no answer yet, in the order in which they asked."""

    def serve(self, listener: socket.socket) -> None:
        """Answer until this process is told to end."""
        self._selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    asking = Channel(listener.accept()[0])
                    self._selector.register(asking.socket, selectors.EVENT_READ, asking)
                elif key.data is self._ranks:
                    self._tell_pid()
                else:
                    self._answer(key.data)

    def end(self) -> None:
        """End what was started. The process of the ranks ends with its channel, once its forks have ended."""
        if self._zygote is not None:
            self._zygote.send_signal(signal.SIGTERM)
            self._zygote.wait(END_S)
        if self._ranks is not None and self._ranks_process is not None:
            self._ranks.close()
            self._ranks_process.wait(END_S)

    def _answer(self, asking: Channel) -> None:
        received = asking.receive()
        if received is None:
            self._selector.unregister(asking.socket)
            asking.close()
            return
        request, fds = received
        if request["kind"] == "zygote":
            self._tell_zygote(asking)
        else:
            self._fork_ranks(asking, fds)

    def _tell_zygote(self, asking: Channel) -> None:
        from tests import machine_zygote

        path, log = self._folder / "z.sock", self._folder / "zygote.log"
        if self._zygote is None:
            self._zygote = machine_zygote.start(path, log)
        ended = self._zygote.poll() is not None
        asking.send("zygote", {"path": str(path), "log": str(log), "ended": ended})

    def _fork_ranks(self, asking: Channel, fds: list[int]) -> None:
        if self._ranks is None:
            from tests.trainer import ranks

            self._ranks_process, self._ranks = ranks.start()
            self._selector.register(self._ranks.socket, selectors.EVENT_READ, self._ranks)
        self._ranks.send("twin", {}, fds)
        for fd in fds:
            os.close(fd)
        self._waiting.append(asking)

    def _tell_pid(self) -> None:
        assert self._ranks is not None
        reply = self._ranks.receive()
        assert reply is not None, "the process that ranks are forked from is gone"
        with contextlib.suppress(OSError):  # whoever asked is gone
            self._waiting.popleft().send("ranks", {"pid": reply[0]["pid"]})


def ask(path: Path, kind: str, fds: list[int] | None = None) -> dict[str, Any]:
    """Return what the keeper at the socket `path` answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(path))
        channel = Channel(sock)
        channel.send(kind, {}, fds)
        received = channel.receive()
    assert received is not None, "the process that keeps what workers share is gone"
    return received[0]


@contextlib.contextmanager
def keeping(folder: Path, program: Sequence[str] = PROGRAM) -> Iterator[Path]:
    """Start a keeper with a folder of its own, and end it. Yields the path of its socket."""
    path = folder / "keeper"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        command = [*program, str(folder), str(listener.fileno())]
        fds = [listener.fileno()]
        process = tied.popen(command, cwd=ROOT, pass_fds=fds, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield path
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(3 * END_S)


def main() -> None:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    keeper = Keeper(Path(sys.argv[1]))
    try:
        keeper.serve(socket.socket(fileno=int(sys.argv[2])))
    finally:
        keeper.end()


if __name__ == "__main__":
    main()
