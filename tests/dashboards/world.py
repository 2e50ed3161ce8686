"""A real operator and kubelet on this machine that outlive the jobs that they run, and a Prometheus beside them."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import secrets
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.dashboards.prometheus import Prometheus, serving
from trainmaster.contract.wire import environment as names
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.cli import resumed_run
from trainmaster_operator.cli.fault_injection import run_faults
from trainmaster_operator.cli.fault_injection.run_faults import FaultServer
from trainmaster_operator.cli.run import local_processes, operator_restarts
from trainmaster_operator.cluster.port import JOB, Object
from trainmaster_operator.control.http_server import listening_socket
from trainmaster_operator.control.peer_secrets import KEY_VARIABLE
from trainmaster_operator.control.session_tokens import KEY_BYTES
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.local.api_server.store_server import StoreServer
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.status_mapping import read_status

SCRAPE_S = 1.0
LIMIT_S = 240.0  # ends a run that hangs; no test asserts on a time


@dataclass
class Records:
    """What the store saw of each job: every status with its time, in seconds since 1970."""

    began_s: float
    ended_s: float = 0.0
    statuses: dict[str, list[tuple[float, JobState]]] = field(default_factory=dict)
    specs: dict[str, list[tuple[float, dict[str, Any]]]] = field(default_factory=dict)

    def last(self, job: str) -> JobState:
        return self.statuses[job][-1][1]


class World:
    """Jobs are put into the store, and waited for by watching it."""

    def __init__(self, store: MemoryStore, folder: Path, run_dir: Path, records: Records) -> None:
        self._store, self._folder, self._run_dir = store, folder, run_dir
        self._cluster = MemoryCluster(store)
        self._faults: list[FaultServer] = []
        self.records = records

    async def submit(self, document: Object, broken: tuple[str, ...] = ()) -> None:
        """`broken`: faults, as `trainmaster run --fault` takes them."""
        given = copy.deepcopy(document)
        name = given["metadata"]["name"]
        given["metadata"].setdefault("namespace", "default")
        out = self._folder / name
        out.mkdir()
        given["spec"].setdefault("checkpoint", {})["directory"] = str(out / "checkpoints")
        variables = {names.OUTPUT_DIR: str(out)}
        if broken:
            encoded = run_faults.parse(broken, DistributedTrainingJob.model_validate(given))
            server = FaultServer(self._run_dir / f"{name}.sock", encoded, {}, lambda text: None)
            await server.start()
            self._faults.append(server)
            variables |= {names.FAULTS: encoded, names.FAULT_SOCKET: str(server.path)}
        workers = given["spec"]["workers"]
        template = workers.setdefault("template", {"spec": {"containers": [{"name": "trainer"}]}})
        given_too = template["spec"]["containers"][0].setdefault("env", [])
        given_too += [{"name": k, "value": v} for k, v in variables.items()]
        self._store.create(JOB, resumed_run.first_resource(given))

    def patch(self, name: str, spec: dict[str, Any]) -> None:
        self._store.patch(JOB, "default", name, {"spec": spec})

    async def until(self, name: str, holds: Callable[[JobState], object]) -> JobState:
        """The status as soon as `holds` is true of it."""
        async with asyncio.timeout(LIMIT_S):
            async for event in self._cluster.watch(JOB, "0", "default"):
                if event.object["metadata"]["name"] == name:
                    status = read_status(event.object.get("status"))
                    if holds(status):
                        return status
        raise AssertionError(f"the watch of {name} ended")

    async def record(self) -> None:
        """Keep every status that the operator writes. Runs until it is cancelled."""
        async for event in self._cluster.watch(JOB, "0", "default"):
            name = event.object["metadata"]["name"]
            status = read_status(event.object.get("status"))
            self.records.statuses.setdefault(name, []).append((time.time(), status))
            self.records.specs.setdefault(name, []).append((time.time(), event.object["spec"]))

    async def close(self) -> None:
        for server in self._faults:
            await server.close()


@asynccontextmanager
async def running(folder: Path, zygote: Path, port: int, fd: int, records: Records) -> AsyncIterator[World]:
    """An operator that listens on the socket `fd`, and a kubelet whose pods fork their ranks from `zygote`."""
    run_dir = Path(tempfile.mkdtemp(prefix="trainmaster-"))
    store = MemoryStore(now=time.time, ids=lambda: str(uuid.uuid4()))
    server = StoreServer(store, run_dir / "store.sock")
    await server.start()
    logs = folder / "logs"
    logs.mkdir()
    operator = operator_restarts.Operator(
        [
            *("--store", str(server.path), "--control-fd", str(fd), "--control-url", f"http://127.0.0.1:{port}"),
            *("--extra-env", json.dumps({})),
        ],
        logs / "operator.log",
        {**os.environ, KEY_VARIABLE: secrets.token_hex(KEY_BYTES)},
        fds=[fd],
        died=lambda code: None,
    )
    kubelet = await local_processes.start(
        "trainmaster_operator.local.process_kubelet",
        ["--store", str(server.path), "--run-dir", str(run_dir), "--out", str(folder), "--zygote", str(zygote)],
        logs / "kubelet.log",
        signal.SIGTERM,
        dict(os.environ),
    )
    world = World(store, folder, run_dir, records)
    # On a machine that others keep busy it may lose its lease; then the next one takes over, as in a local run.
    tasks = [asyncio.create_task(work) for work in (operator.keep(), world.record())]
    try:
        yield world
    finally:
        await asyncio.gather(operator.end(3.0), local_processes.end(kubelet, 9.0))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await world.close()
        await server.close()
        shutil.rmtree(run_dir, ignore_errors=True)


@contextmanager
def scraped(folder: Path, port: int) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the operator as a Service's endpoint on a cluster would be."""
    data = folder / "prometheus"
    data.mkdir()
    labels = {"namespace": "trainmaster-system", "pod": "trainmaster-operator-0"}
    with serving(data, {f"127.0.0.1:{port}": labels}, SCRAPE_S) as prometheus:
        yield prometheus


def listen() -> tuple[Any, int]:
    """(a listening socket on loopback, its port)."""
    sock = listening_socket("127.0.0.1", 0)
    return sock, int(sock.getsockname()[1])
