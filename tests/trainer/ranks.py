"""Worlds of real ranks for tests, without an agent: forked from one process that has imported the trainer.

Run as a program it is that process: it takes requests from the descriptor in argv, forks, waits, answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainmaster.agent import processes
from trainmaster.contract.wire import ProgressRecord, environment
from trainmaster.contract.wire.channel import Channel

ROOT = Path(__file__).parents[2]
STRAGGLERS_S = 30  # after the first rank failed: what then still runs hangs in a collective


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
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'trainer'}", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        fd = theirs.fileno()
        from tests import tied  # not at the top: the program below doesn't find it

        self.process = tied.popen([sys.executable, __file__, str(fd)], env=env, pass_fds=[fd], cwd=ROOT)
        theirs.close()
        self.channel = ours

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

    def close(self) -> None:
        self.channel.close()
        self.process.wait()


class _Reader(threading.Thread):
    """Plays the agent: takes messages until the rank's end, and uploads what is staged."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(daemon=True)
        self.channel, self.messages = channel, []
        self.others: list[_Reader] = []
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
            for fd in fds:
                os.close(fd)

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
    import trainmaster.loop
    import trainmaster.steps  # noqa: F401

    while (received := channel.receive()) is not None:
        request, fds = received
        pids = [_fork(channel, request, rank, fds) for rank in range(request["world_size"])]
        for fd in fds:
            os.close(fd)
        channel.send("done", {"codes": _wait(pids)})


def _wait(pids: list[int]) -> list[int]:
    codes: dict[int, int] = {}
    timer = threading.Timer(STRAGGLERS_S, lambda: [os.kill(p, signal.SIGKILL) for p in pids if p not in codes])
    while len(codes) < len(pids):
        pid, status = os.wait()
        failed = any(codes.values())
        codes[pid] = os.waitstatus_to_exitcode(status)
        if codes[pid] and not failed and len(codes) < len(pids):
            timer.start()
    timer.cancel()
    return [codes[pid] for pid in pids]


def _fork(channel: Channel, request: dict[str, Any], rank: int, fds: list[int]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    processes.die_with_parent(parent)
    channel.close()
    code = 1
    try:
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for name in list(os.environ):
            if name.startswith("TRAINMASTER_"):
                del os.environ[name]
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
