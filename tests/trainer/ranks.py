"""Worlds of real ranks for tests, without an agent: forked from one process that has imported the trainer.

Run as a program it is that process: it takes requests from the descriptor in argv, forks, waits, answers. It also
forks a process that calls functions for tests (`Ranks.call`): one in which ranks can be forked by whoever is tested.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trainmaster.agent import processes
from trainmaster.contract.wire import ProgressRecord, environment
from trainmaster.contract.wire.channel import Channel

ROOT = Path(__file__).parents[2]
STRAGGLERS_S = 30  # after the first rank failed: what then still runs hangs in a collective
PRELOADED = (
    "trainmaster.steps",
    "trainmaster.parity",
    "trainmaster.data.windows",
    "trainmaster.models.gpt",
    "trainmaster.models.llama",
    "trainmaster.models.moe",
    "torch.distributed.checkpoint",
)
"""What ranks import besides the loop, and what imports itself when it is first needed."""
COMPILER = (
    "torch._inductor.compile_fx",
    "torch._inductor.codegen.cpp",
    "torch._inductor.codegen.cpp_wrapper_gpu",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.choices",
    "torch._dynamo.backends.inductor",
    "torch.export._trace",
    "torch.utils.cpp_extension",
)
"""The same of torch.compile: 700 modules."""


@dataclass
class Outcome:
    codes: list[int]  # negative: the signal
    output: str
    messages: list[list[dict[str, Any]]]  # of each rank's channel
    records: list[ProgressRecord]

    def said(self, kind: str) -> list[dict[str, Any]]:
        return [m for messages in self.messages for m in messages if m["kind"] == kind]


class Ranks:
    """Starts worlds of ranks. One process imports torch once for all tests of a session."""

    def __init__(self) -> None:
        ours, theirs = Channel.pair()
        path = os.pathsep.join(str(folder) for folder in (ROOT / "trainer", ROOT / "operator", ROOT))
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        fd = theirs.fileno()
        from tests import tied  # not at the top: the program below doesn't find it

        self.process = tied.popen([sys.executable, __file__, str(fd)], env=env, pass_fds=[fd], cwd=ROOT)
        theirs.close()
        self.channel = ours
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


@cache
def shared() -> Ranks:
    """The one that all tests of this process use, closed when it ends."""
    ranks = Ranks()
    atexit.register(ranks.close)
    return ranks


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
        from trainmaster.checkpoint.upload import upload

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


@contextmanager
def fault_socket(path: Path):
    """Answers `go` to the first question for each fault, as whoever starts a run does."""
    fired: set[str] = set()
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


def _serve(channel: Channel) -> None:
    for name in ("trainmaster.loop", *PRELOADED):
        importlib.import_module(name)
    calls: list[int] = []
    while (received := channel.receive()) is not None:
        request, fds = received
        pids = []
        if request["kind"] == "run":
            pids = [_fork(channel, request, rank, fds) for rank in range(request["world_size"])]
        elif request["kind"] == "calls":
            calls.append(_fork_calls(channel, fds[0]))
        elif request["kind"] == "preload compiler":
            import_compiler()
        for fd in fds:  # of a rank that dies nobody else may have them
            os.close(fd)
        if pids:
            channel.send("done", {"codes": _wait(channel, pids)})
    for pid in calls:
        os.waitpid(pid, 0)
    os._exit(0)  # the interpreter would take its time to clear away what torch has imported


def import_compiler() -> None:
    """Import what torch.compile needs, for forks of this process. Starts no thread."""
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # or a pool of processes starts; our ranks set it, too
    for name in COMPILER:
        importlib.import_module(name)


def _wait(channel: Channel, pids: list[int]) -> list[int]:
    """The exit codes of ranks, negative ones of signals. Those that are left when the caller says `end`, or a while
    after the first one that failed, are killed."""
    codes: dict[int, int] = {}
    running = {os.pidfd_open(pid): pid for pid in pids}
    poll = select.poll()
    for fd in (channel.fileno(), *running):
        poll.register(fd, select.POLLIN)
    deadline: float | None = None
    while running:
        ready = poll.poll(None if deadline is None else max(deadline - time.monotonic(), 0) * 1000)
        if not ready or channel.fileno() in dict(ready):
            if ready:
                channel.receive()
            for pid in running.values():
                os.kill(pid, signal.SIGKILL)
            deadline = None
        for fd in [fd for fd, _ in ready if fd in running]:
            pid = running.pop(fd)
            poll.unregister(fd)
            os.close(fd)
            codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if codes[pid] and deadline is None:
                deadline = time.monotonic() + STRAGGLERS_S
    return [codes[pid] for pid in pids]


def _fork(channel: Channel, request: dict[str, Any], rank: int, fds: list[int]) -> int:
    def run() -> None:
        channel.close()
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        ids = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(request["world_size"])}
        os.environ.update({**ids, **request["env"]})
        if fds:
            os.environ[environment.PROGRESS_FD] = str(fds[2 * rank])
            os.environ[environment.CHANNEL_FD] = str(fds[2 * rank + 1])
            for fd in fds[: 2 * rank] + fds[2 * rank + 2 :]:
                os.close(fd)
        if request["script"]:
            sys.argv = [request["script"]]
            runpy.run_path(request["script"], run_name="__main__")
        else:
            import trainmaster.loop

            trainmaster.loop.main()

    return forked(run)


def _fork_calls(channel: Channel, fd: int) -> int:
    def run() -> None:
        channel.close()
        calls = Channel.open(os.dup(fd))
        os.close(fd)
        while (received := calls.receive()) is not None:
            calls.send("called", _called(**received[0]))

    return forked(run)


def _called(module: str, name: str, arguments: list[Any], **_: Any) -> dict[str, Any]:
    try:
        return {"returned": getattr(importlib.import_module(module), name)(*arguments)}
    except (Exception, SystemExit):  # noqa: BLE001 whoever calls is told
        return {"raised": traceback.format_exc()}


def forked(run: Callable[[], None]) -> int:
    """The pid of a fork that does nothing else than `run`, and ends with this process at the latest."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    processes.die_with_parent(parent)
    for name in list(os.environ):
        if name.startswith("TRAINMASTER_"):
            del os.environ[name]
    code = 1
    try:
        run()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 a fork must not run on into the caller
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(Channel.open(int(sys.argv[1])))
