"""A store, a kubelet process, and lifelines: connections that end when the processes that hold them have ended."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.examples import container, pod
from trainmaster_operator.cluster.port import DELETED, POD, Object
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.local.api_server.store_server import StoreServer

GIVE_UP_S = 60.0
ROOT = Path(__file__).parents[2]

HELLO = """
import os, socket, sys, signal, time
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["LIFELINE"])
line.sendall(f"{sys.argv[1]} {os.getpid()}\\n".encode())
"""
"""Runs in a process of a pod: announces it under the name argv[1]. A child that it forks keeps the line open too."""

SLEEP = HELLO + "signal.pause()"


def zygote_stand_in(folder: Path) -> list[str]:
    return ["env", f"LIFELINE={folder / 'lifeline'}", sys.executable, "-c", SLEEP, "zygote"]


def python_path() -> str:
    return os.pathsep.join([str(ROOT / "operator"), str(ROOT / "trainer"), str(ROOT)])


@dataclass
class Process:
    pid: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Lifelines:
    def __init__(self) -> None:
        self._processes: dict[str, Process] = {}
        self._news = asyncio.Condition()

    async def serve(self, path: Path) -> asyncio.AbstractServer:
        return await asyncio.start_unix_server(self._connected, str(path))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name, pid = (await reader.readline()).decode().split()
        process = Process(int(pid))
        async with self._news:
            self._processes[name] = process
            self._news.notify_all()
        try:
            await reader.read()
        except ConnectionError:
            pass
        finally:
            process.ended.set()
            writer.close()

    async def started(self, name: str, after: Process | None = None) -> Process:
        """The process of this name; with `after`, another one than that."""
        async with self._news:
            await self._news.wait_for(lambda: self._processes.get(name, after) is not after)
            return self._processes[name]

    async def ended(self, *names: str) -> None:
        for name in names:
            await (await self.started(name)).ended.wait()


@dataclass
class Local:
    folder: Path
    store: MemoryStore
    server: StoreServer
    cluster: MemoryCluster
    lifelines: Lifelines
    kubelet: asyncio.subprocess.Process

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def pod(self, name: str, script: str, *arguments: str, grace_s: int = 30, **fields: Any) -> Object:
        """A Pod that runs a Python script with `name` and `arguments` as its arguments."""
        env = [{"name": "LIFELINE", "value": str(self.folder / "lifeline")}]
        command = ["python", "-c", script, name, *arguments]
        main = container(**{"command": command, "env": env, **fields})
        return pod("default", name, containers=[main], terminationGracePeriodSeconds=grace_s)

    async def until(self, name: str, holds: Callable[[Object], bool]) -> Object:
        """Waits for a state of the Pod; its last state when it is removed first."""
        last: Object | None = None
        async for event in self.cluster.watch(POD, "0"):
            if event.object["metadata"].get("name") != name:
                continue
            last = event.object
            if event.type == DELETED or holds(last):
                return last
        raise AssertionError("the watch ended")

    async def phase(self, name: str, phase: str) -> Object:
        return await self.until(name, lambda obj: obj["status"]["phase"] == phase)

    async def removed(self, name: str) -> Object:
        return await self.until(name, lambda obj: False)


@asynccontextmanager
async def local_world(
    zygote: list[str] | None = None, shared: Path | None = None, options: Sequence[str] = ()
) -> AsyncIterator[Local]:
    """`zygote`: the command that the kubelet starts as one. `shared`: the socket of one that serves already.
    `options`: further ones of the kubelet."""
    folder = Path(tempfile.mkdtemp())  # short: a unix socket's path has at most 107 bytes
    (folder / "run").mkdir(mode=0o700)
    lifelines = Lifelines()
    lines = await lifelines.serve(folder / "lifeline")
    store = MemoryStore()
    server = StoreServer(store, folder / "run" / "store.sock")
    await server.start()
    kubelet = await start_kubelet(folder, zygote, shared=shared, options=options)
    try:
        async with asyncio.timeout(GIVE_UP_S):
            yield Local(folder, store, server, MemoryCluster(store), lifelines, kubelet)
    finally:
        if kubelet.returncode is None:
            kubelet.terminate()
            await kubelet.wait()
        await server.close()
        lines.close()
        shutil.rmtree(folder)


async def start_kubelet(
    folder: Path,
    zygote: list[str] | None = None,
    run: str = "run",
    shared: Path | None = None,
    options: Sequence[str] = (),
) -> asyncio.subprocess.Process:
    command = shlex.join(zygote or zygote_stand_in(folder))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trainmaster_operator.local.process_kubelet", "--store", str(folder / run / "store.sock"),
        "--run-dir", str(folder / run), "--out", str(folder / "out"), "--zygote-command", command,
        *(("--zygote", str(shared)) if shared else ()), *options,
        env={**os.environ, "PYTHONPATH": python_path(), "LIFELINE": str(folder / "lifeline"), "SECRET": "x"},
        start_new_session=True,
    )  # fmt: skip
