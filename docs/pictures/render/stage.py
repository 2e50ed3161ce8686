"""Where an incident is seeded: two replicas of the operator, a kubelet and a Prometheus, all real, on this machine."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docs.pictures.render.replica import NAMESPACE
from tests import machine_zygote
from tests.dashboards.prometheus import Prometheus, serving
from tests.dashboards.world import Records, World, listen
from trainmaster_operator.api.api_group import API_VERSION, GROUP
from trainmaster_operator.cli.run import local_processes, operator_restarts
from trainmaster_operator.cluster.port import JOB, POD, Object
from trainmaster_operator.control.peer_secrets import KEY_VARIABLE
from trainmaster_operator.control.session_tokens import KEY_BYTES
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.local.api_server.store_server import StoreServer
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.status_mapping import read_status

STEPS = 1200
SAVE_EVERY = 20
PACE_S = 0.6
"""The length of a step."""
SCRAPE_S = 2.0
PATIENCE_S = 90
"""For so long an agent may be silent on a machine that is busy with other things, and is not lost."""
LOOK_S = 0.25
LIMIT_S = 900.0
"""Ends a run that never comes to what is waited for."""
PODS = ("trainmaster-operator-7c9d4-k2xvn", "trainmaster-operator-7c9d4-q8wzt")


@dataclass(frozen=True)
class Cast:
    """A job of a scene by its names."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass
class Stage:
    """What the play of an incident may touch."""

    world: World
    store: MemoryStore
    kubelet: asyncio.subprocess.Process
    replicas: tuple[operator_restarts.Operator, ...]
    prometheus: Prometheus
    jobs: list[Cast] = field(default_factory=list)

    async def submit(
        self,
        job: Cast,
        *faults: str,
        pods: int = 2,
        ranks: int = 1,
        recovery: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Submit a job that trains a small model at a steady pace. `faults`: as `trainmaster run` takes them."""
        container = {
            "name": "trainer",
            "env": [{"name": name, "value": value} for name, value in (variables or {}).items()],
        }
        document = {
            "apiVersion": API_VERSION,
            "kind": JOB,
            "metadata": {"name": job.name, "namespace": job.namespace},
            "spec": {
                "workers": {
                    "replicas": pods,
                    "ranksPerPod": ranks,
                    "template": {"spec": {"containers": [container]}},
                },
                "training": {
                    "model": {"name": "gpt", "options": {"layers": 1, "heads": 2, "width": 32, "context": 32}},
                    "data": {"source": "text", "path": "@stdlib"},
                    "steps": STEPS,
                    "batch": {"global": 12},
                    "optimizer": {"name": "adamw", "lr": 0.005},
                    "device": "CPU",
                },
                "checkpoint": {"every": SAVE_EVERY},
                "recovery": {"agentLostSeconds": PATIENCE_S, **(recovery or {})},
            },
        }
        await self.world.submit(document, (*paced(1, range(pods * ranks)), *faults))
        self.jobs.append(job)

    def status(self, job: Cast) -> JobState:
        return read_status(self.store.find(JOB, job.namespace, job.name).get("status"))

    def pods(self, job: Cast) -> list[Object]:
        return self.store.list(POD, job.namespace, {f"{GROUP}/job": job.name}).items

    async def until(self, holds: Callable[[], object]) -> None:
        """Look again and again until `holds` is true."""
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                await asyncio.sleep(LOOK_S)

    async def until_steps(self, job: Cast, step: int = 3) -> None:
        await self.until(lambda: self.status(job).progress.step >= step)

    async def until_phase(self, job: Cast, phase: JobPhase) -> None:
        await self.until(lambda: self.status(job).phase is phase)

    async def memory(self, replica: int) -> float:
        """Bytes that a replica of the operator takes, as Prometheus saw it last; 0.0 if it saw nothing lately."""
        expr = f'process_resident_memory_bytes{{pod="{PODS[replica]}"}}'
        found = await asyncio.to_thread(self.prometheus.at, expr, time.time())
        return found[0].value if found else 0.0

    async def all_seen(self) -> float:
        """Wait until Prometheus has heard of every replica what is so now. Return a time at which it had, in seconds
        since 1970.

        A scrape of a busy machine may fail, and then Prometheus says nothing of that replica until the next one. A
        scrape that began before that time and fails after it counts as well, so each later one is waited for.
        """
        done_s = time.time()
        async with asyncio.timeout(LIMIT_S):
            while True:
                seen_s = time.time()
                while not await self._scraped(f"timestamp(up) > {seen_s:.3f}", time.time()):
                    await asyncio.sleep(LOOK_S)
                if await self._scraped(f"timestamp(up) > {done_s:.3f} and up == 1", seen_s):
                    return seen_s

    async def _scraped(self, expr: str, at_s: float) -> bool:
        """Whether an expression of scrapes holds for every replica."""
        return len(await asyncio.to_thread(self.prometheus.at, expr, at_s)) == len(PODS)

    def stop_kubelet(self) -> None:
        """No new pod starts from now on; those that run go on."""
        self.kubelet.send_signal(signal.SIGSTOP)

    def pod_waits(self, pod: Object, reason: str, message: str) -> None:
        """Tell of a pod what a kubelet tells of one whose container can't start."""
        meta = pod["metadata"]
        if not pod["spec"].get("nodeName"):
            self.store.bind(meta["namespace"], meta["name"], "node-3")
        waiting = {"name": "trainer", "ready": False, "state": {"waiting": {"reason": reason, "message": message}}}
        obj = self.store.get(POD, meta["namespace"], meta["name"])
        self.store.update_status(POD, {**obj, "status": {"phase": "Pending", "containerStatuses": [waiting]}})


def paced(step: int, ranks: Iterable[int], seconds: float = PACE_S) -> Iterator[str]:
    """Faults by which steps from this one on take so long, until the ranks are started again."""
    for rank in ranks:
        yield f"slow:rank={rank},step={step},seconds={seconds:g},steps=100000"


@contextmanager
def zygote(folder: Path) -> Iterator[Path]:
    """The socket of a process from which the ranks of all stages are forked."""
    folder.mkdir(parents=True, exist_ok=True)
    run_dir = Path(tempfile.mkdtemp(prefix="trainmaster-"))
    path = run_dir / "z.sock"
    try:
        with machine_zygote.serving(path, folder / "zygote.log"):
            yield path
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)


@asynccontextmanager
async def opened(folder: Path, socket: Path, leak_bytes: float = 0.0) -> AsyncIterator[Stage]:
    """A stage whose files lie in `folder`. `socket`: of the zygote. `leak_bytes`: that a leading operator keeps in
    each second. It is open once an operator leads, and both are scraped."""
    work, data, logs = folder / "work", folder / "prometheus", folder / "logs"
    for each in (work, data, logs):
        each.mkdir(parents=True)
    run_dir = Path(tempfile.mkdtemp(prefix="trainmaster-"))
    store = MemoryStore(now=time.time, ids=lambda: str(uuid.uuid4()))
    server = StoreServer(store, run_dir / "store.sock")
    await server.start()
    sockets = [listen() for _ in PODS]
    key = secrets.token_hex(KEY_BYTES)
    replicas = tuple(
        operator_restarts.Operator(
            [
                *("--store", str(server.path), "--control-fd", str(sock.fileno()), "--identity", pod),
                *("--control-url", f"http://127.0.0.1:{port}", "--agents-url", f"http://127.0.0.1:{sockets[0][1]}"),
                *("--leak", f"{leak_bytes:.0f}"),
            ],
            logs / f"{pod}.log",
            {**os.environ, KEY_VARIABLE: key},
            fds=[sock.fileno()],
            module="docs.pictures.render.replica",
        )
        for pod, (sock, port) in zip(PODS, sockets, strict=True)
    )
    kubelet = await local_processes.start(
        "trainmaster_operator.local.process_kubelet",
        ["--store", str(server.path), "--run-dir", str(run_dir), "--out", str(work), "--zygote", str(socket)],
        logs / "kubelet.log",
        signal.SIGTERM,
        dict(os.environ),
    )
    world = World(store, work, run_dir, Records(began_s=time.time()))
    addresses = [f"127.0.0.1:{port}" for _, port in sockets]
    targets = {at: {"namespace": NAMESPACE, "pod": pod} for at, pod in zip(addresses, PODS, strict=True)}
    tasks = [asyncio.create_task(replica.keep()) for replica in replicas]
    try:
        with serving(data, targets, SCRAPE_S) as prometheus:
            stage = Stage(world, store, kubelet, replicas, prometheus)
            while not await asyncio.to_thread(_is_scraped, prometheus):
                await asyncio.sleep(LOOK_S)
            yield stage
    finally:
        if kubelet.returncode is None:
            kubelet.send_signal(signal.SIGCONT)
        await asyncio.gather(*(replica.end(3.0) for replica in replicas), local_processes.end(kubelet, 9.0))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await world.close()
        await server.close()
        for sock, _ in sockets:
            sock.close()
        shutil.rmtree(run_dir, ignore_errors=True)
        shutil.rmtree(work, ignore_errors=True)


def _is_scraped(prometheus: Prometheus) -> bool:
    leaders = prometheus.at("trainmaster_leader", time.time())
    return len(leaders) == len(PODS) and sum(series.value for series in leaders) == 1
