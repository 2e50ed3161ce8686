"""Worlds of real ranks for tests, without an agent: forked from one process that has imported the trainer."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests import tied
from tests.suite import keeper
from trainmaster.contract.wire import ProgressRecord, environment
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.contract.wire.channel import Channel

ROOT = Path(__file__).parents[2]


@dataclass
class Outcome:
    codes: list[int]  # negative: the signal
    output: str
    messages: list[list[dict[str, Any]]]  # of each rank's channel
    records: list[ProgressRecord]

    @property
    def refused(self) -> bool:
        """Whether ranks refused their config. Who refuses first may leave the others in a collective."""
        return ExitCode.CONFIG_ERROR in self.codes and {*self.codes} <= {ExitCode.CONFIG_ERROR, ExitCode.PEER_LOST}

    @property
    def has_needless_traceback(self) -> bool:
        """Whether a traceback was printed though no rank was left in a collective, which prints one."""
        return "Traceback" in self.output and ExitCode.PEER_LOST not in self.codes

    def said(self, kind: str) -> list[dict[str, Any]]:
        return [m for messages in self.messages for m in messages if m["kind"] == kind]


def start() -> tuple[subprocess.Popen[Any], Channel]:
    """Start a process that imports the trainer, and that ranks are forked from. Return it with the channel to it."""
    ours, theirs = Channel.pair()
    path = os.pathsep.join(str(folder) for folder in (ROOT / "trainer", ROOT / "operator", ROOT))
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    fd = theirs.fileno()
    command = [sys.executable, str(Path(__file__).with_name("forks.py")), str(fd)]
    process = tied.popen(command, env=env, pass_fds=[fd], cwd=ROOT)
    theirs.close()
    return process, ours


class Ranks:
    """Starts worlds of ranks, one after the other. One process imports torch once for all tests of a session."""

    def __init__(self) -> None:
        self.process, self.channel = start()
        self.pid = self.process.pid
        self.calls: Channel | None = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a module's function in another process, and return what it returns.

        The process is forked from the one that has imported the trainer. It has run no operation of torch, so ranks can
        be forked there; it makes the calls of all tests, so a function may keep what it has found out. Arguments and
        what is returned are JSON. Raises AssertionError with the traceback of a function that failed.
        """
        if self.calls is None:
            self.calls, theirs = Channel.pair()
            self.channel.send("calls", {}, [theirs.fileno()])
            theirs.close()
        self.calls.send("call", {"module": function.__module__, "name": function.__name__, "arguments": arguments})
        reply = self.calls.receive()
        assert reply is not None, "the process that calls functions is gone"
        assert "raised" not in reply[0], reply[0]["raised"]
        return reply[0]["returned"]

    def twin(self) -> Twin:
        """Another one that starts worlds, beside this one's: a fork of its process. The caller closes it."""
        ours, theirs = Channel.pair()
        self.channel.send("twin", {}, [theirs.fileno()])
        theirs.close()
        reply = self.channel.receive()
        assert reply is not None, "the process that forks ranks is gone"
        return Twin(ours, reply[0]["pid"])

    def preload_compiler(self) -> None:
        """Import what ranks that compile need. From now on ranks are forked with it."""
        self.channel.send("preload compiler", {})

    def run(
        self,
        output: Path,
        world_size: int,
        env: dict[str, str],
        *,
        script: str = "",
        agent: bool = False,
        asks: bool = False,
        **control: int,
    ) -> Outcome:
        """Run `script` (default: our own loop) in `world_size` ranks to the end.

        With `agent` each rank gets a progress record (`control`: what the agent wrote into it) and a channel. `asks`:
        once a rank has failed, the agent asks the others to save their last step.
        """
        import torch.distributed as dist

        from trainmaster.contract.wire import Control

        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        log = output / "ranks.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        started = log.stat().st_size
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"} | env
        records, ends, fds = [], [], []
        for rank in range(world_size if agent else 0):
            records.append(ProgressRecord.create(int(env.get(environment.ROUND, "0")), rank))
            records[-1].set_control(Control(**control))
            ends.append(Channel.pair())
            fds += [records[-1].fd, ends[-1][1].fileno()]
        request = {"world_size": world_size, "env": env, "log": str(log), "script": script}
        readers = [_Reader(ours) for ours, _ in ends]
        for reader in readers:
            reader.others = [other for other in readers if other is not reader] if asks else []
            reader.end = self._end if asks else None
        self.channel.send("run", request, fds)
        for _, theirs in ends:
            theirs.close()
        reply = self.channel.receive()
        assert reply is not None, "the process that forks ranks is gone"
        messages = [reader.result() for reader in readers]
        with open(log) as file:
            file.seek(started)
            text = file.read()
        return Outcome(reply[0]["codes"], text, messages, records)

    def _end(self) -> None:
        """All ranks of this run have saved their last step, or are dead: those that hang in a collective are killed."""
        self.channel.send("end", {})

    def close(self) -> None:
        if self.calls is not None:
            self.calls.close()
        self.channel.close()
        self.process.wait()


class Twin(Ranks):
    """Starts worlds of ranks from a fork of another one's process."""

    def __init__(self, channel: Channel, pid: int) -> None:
        self.channel, self.pid, self.calls = channel, pid, None

    def close(self) -> None:
        """End it with the ranks that it has."""
        self.channel.socket.shutdown(socket.SHUT_RDWR)
        self.channel.close()


@cache
def shared() -> Ranks:
    """The one that all tests of this process use, closed when it ends. All workers of a run have forks of one."""
    ranks = Ranks() if keeper.kept is None else _forked(keeper.kept)
    atexit.register(ranks.close)
    return ranks


def _forked(path: Path) -> Twin:
    ours, theirs = Channel.pair()
    pid = keeper.ask(path, "ranks", [theirs.fileno()])["pid"]
    theirs.close()
    return Twin(ours, pid)


class _Reader(threading.Thread):
    """Plays the agent: takes messages until the rank's end, and uploads what is staged."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(daemon=True)
        self.channel, self.messages = channel, []
        self.others: list[_Reader] = []
        self.end: Callable[[], None] | None = None
        self.over = False  # it has saved its last step, or is dead
        self.start()

    def run(self) -> None:
        from trainmaster.checkpoint.files.upload import upload

        while (received := self._receive()) is not None:
            message, fds = received
            if message["kind"] == "staged":
                message["result"] = upload(message, fds[0])
            self.messages.append(message)
            if message["kind"] == "failed":
                for other in self.others:
                    other.ask()
            if message["kind"] == "rescued":  # it waits to be killed, or until nobody is there who would
                self.channel.socket.shutdown(socket.SHUT_WR)
                self._is_over()
            for fd in fds:
                os.close(fd)
        self._is_over()

    def _is_over(self) -> None:
        self.over = True
        if self.end is not None and all(other.over for other in self.others):
            self.end()

    def _receive(self) -> tuple[dict[str, Any], list[int]] | None:
        try:
            return self.channel.receive()
        except ConnectionResetError:  # it died before it took what was sent to it
            return None

    def ask(self) -> None:
        with contextlib.suppress(OSError):  # it is dead, or has saved
            self.channel.send("rescue", {})

    def result(self) -> list[dict[str, Any]]:
        self.join()
        self.channel.close()
        return self.messages


class Fired(set[str]):
    """The faults that were told to fire."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def add(self, fault: str) -> None:
        with self._changed:
            super().add(fault)
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        """Wait until so many have been."""
        with self._changed:
            self._changed.wait_for(lambda: len(self) >= count)


@contextmanager
def fault_socket(path: Path) -> Iterator[Fired]:
    """Answers `go` to the first question for each fault, as whoever starts a run does."""
    fired = Fired()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, connection.makefile("rwb") as file:
                    asked = json.loads(file.readline())["fire"]
                    file.write(json.dumps({"go": asked not in fired}).encode() + b"\n")
                    fired.add(asked)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield fired
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
