"""Injected faults in one pod. Only a person who may run a command in the pod's container can ask for them.

Faults of a rank, of the store or of the agent that the agent can cause, it causes at once. The others are written to a
file for its ranks, which look for it at each step and ask here before they act, so that each fault fires once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.agent.shell import pod_log
from trainmaster.contract.wire import environment
from trainmaster.contract.wire import fault_protocol as wire

if TYPE_CHECKING:
    from trainmaster.agent.shell.supervisor import Supervisor

_ASK_TIMEOUT_S = 10.0
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_OF_RANKS = ("slow", "exit", "raise", "nan", "oom", "corrupt-checkpoint")


class Impossible(Exception):
    """Why a fault cannot be injected here, for people."""


class Faults:
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.folder = wire.folder(supervisor.settings.identity.pod_uid)
        self._armed: dict[str, dict[str, Any]] = {}
        self._asked = 0
        self._server: asyncio.Server | None = None
        self._acts: dict[str, Callable[[dict[str, Any]], Awaitable[str]]] = {
            "lose-store": self._lose_store,
            "partition": self._partition,
            "fill-disk": self._fill_disk,
            "kill-agent": self._kill_agent,
        }

    async def open(self) -> None:
        """Listen for requests. If that is not possible, training continues and no fault can be requested."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            seen = os.lstat(self.folder)
            if seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
                raise PermissionError(f"{self.folder} belongs to another user, or is open to others")
            for left in (wire.SOCKET, wire.ARMED, wire.DISK_FULL):
                (self.folder / left).unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._serve, sock=_listener(self.folder / wire.SOCKET))
        except OSError as error:
            pod_log.note(f"no faults can be injected here: {error}")
            return
        os.environ[environment.FAULT_DIR] = str(self.folder)  # for uploads, which run in this process

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self) -> dict[str, str]:
        """Return the variables for ranks."""
        return {environment.FAULT_DIR: str(self.folder)} if self._server is not None else {}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await self._answer(json.loads(line))).encode() + b"\n")
                await writer.drain()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            pod_log.note(f"malformed question about a fault: {error}")
        except ConnectionError:
            return  # the client is gone
        finally:
            writer.close()

    async def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        if "fire" in question:
            return {"go": await self._may_fire(question)}
        try:
            return {"done": await self._do(question["do"])}
        except Impossible as reason:
            return {"refused": str(reason)}

    async def _may_fire(self, question: dict[str, Any]) -> bool:
        fault = self._armed.pop(question["fire"], None)
        if fault is None:
            return False
        self._lay_down()
        pod_log.note(f"fault {fault['kind']} fires on rank {question['rank']} in step {question['step']}")
        if fault["kind"] in self._acts:
            try:
                await self._acts[fault["kind"]](fault)
            except Impossible as reason:
                pod_log.note(f"fault {fault['kind']} can't be done: {reason}")
        return True

    async def _do(self, fault: dict[str, Any]) -> str:
        """Inject a fault, and return what was done. Raises Impossible."""
        kind = fault["kind"]
        if fault["step"] == 0 and kind in self._acts:
            return await self._acts[kind](fault)
        if kind not in (*_SIGNALS, *_OF_RANKS, *self._acts):
            raise Impossible(f"an agent knows no fault {kind!r}")
        rank = self._rank(int(fault["rank"]))
        if fault["step"] == 0 and kind in _SIGNALS:
            rank.signal(_SIGNALS[kind])
            return f"{_SIGNALS[kind].name} was sent to rank {fault['rank']}"
        self._asked += 1
        self._armed[f"asked-{self._asked}"] = {**fault, "id": f"asked-{self._asked}"}
        self._lay_down()
        return f"rank {fault['rank']} does it in {'step ' + str(fault['step']) if fault['step'] else 'its next step'}"

    def _rank(self, number: int) -> Any:
        """Return the process of a rank. Raises Impossible if it does not run here."""
        round = self._supervisor.round
        for rank in round.ranks if round is not None else []:
            if rank.number == number and not rank.ended and rank.process is not None:
                return rank.process
        raise Impossible(f"rank {number} doesn't run in this pod now")

    def _lay_down(self) -> None:
        """Write the file of faults for ranks, completely or not at all."""
        target = self.folder / wire.ARMED
        if not self._armed:
            target.unlink(missing_ok=True)
            return
        temporary = target.with_suffix(".new")
        temporary.write_text(json.dumps(list(self._armed.values())))
        temporary.replace(target)

    async def _lose_store(self, _: dict[str, Any]) -> str:
        if not self._supervisor.stores.kill_current():
            raise Impossible("the store of the round that runs isn't in this pod")
        return "the store of the round was killed"

    async def _partition(self, fault: dict[str, Any]) -> str:
        self._supervisor.reporter.cut_off(fault["seconds"])
        return f"this agent reaches no operator for {fault['seconds']:g} s"

    async def _fill_disk(self, fault: dict[str, Any]) -> str:
        full = self.folder / wire.DISK_FULL
        full.touch()
        asyncio.get_running_loop().call_later(fault["seconds"], lambda: full.unlink(missing_ok=True))
        return f"no space is left for this pod's checkpoints for {fault['seconds']:g} s"

    async def _kill_agent(self, _: dict[str, Any]) -> str:
        # The answer is sent first, so that the client knows that it was done.
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGKILL)
        return "this agent dies now"


def _listener(path: Path) -> socket.socket:
    """Return a listening socket that only its owner can use, from the first moment on, because the folder is
    private."""
    listener = socket.socket(socket.AF_UNIX)
    with wire.short(path) as name:
        listener.bind(name)
    os.chmod(path, 0o600)
    return listener


def request(words: list[str]) -> int:
    """Send one fault to the agent of this pod, and print what happens (`trainmaster.agent fault JSON`)."""
    path = wire.folder(os.environ.get(environment.POD_UID, "")) / wire.SOCKET
    try:
        answer = wire.ask(path, {"do": json.loads(words[0])}, _ASK_TIMEOUT_S)
    except (OSError, ValueError, IndexError) as error:
        print(f"no agent answers on {path}: {error}", file=sys.stderr)
        return 1
    with contextlib.suppress(KeyError):
        print(answer["done"])
        return 0
    print(answer.get("refused", "the agent hung up"), file=sys.stderr)
    return 1
