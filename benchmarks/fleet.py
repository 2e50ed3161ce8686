"""The control channel under thousands of agents: how fast a round reaches them, and how soon all are served again.

    python -m benchmarks.fleet [--agents 1000 4000] [--rounds 10] [--no-write]

The operator is the real process, two replicas of it, over a small API server in this process; the agents are simulated
in a third one (fleet_agents.py), with real messages over real TLS. It needs no cluster. On a machine of few cores the
agents' own work is a part of what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import re
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.ports import free_port
from benchmarks.record import Case, name_of, write
from benchmarks.recovery import table
from tests.runtime.api_server import ApiServer
from trainmaster.host import processes
from trainmaster_operator.cluster.port import CONFIG_MAP, JOB, LEASE, POD, Object
from trainmaster_operator.local.api_server.memory_store import MemoryStore

SPACE, OPERATOR_SPACE = "fleet", "trainmaster-system"
SERVICE = f"trainmaster-operator.{OPERATOR_SPACE}.svc"
WAIT_S = 300.0
ANSWER_S = 60.0  # of a leader that is at work on thousands of reports at once
SETTLE_S = 3.0  # until what agents told on the way to training has been taken in
REST_S = 20.0  # over which the cost of agents that merely report is measured
AGENTS, JOBS = [1000, 4000], 200
GOALS_S = {1000: 1.0, 4000: 3.0}  # p99 from a rank's death to each agent's next directive
RECONNECTED_S = 30.0
STATUS_BYTES = 16 * 1024


class Replica:
    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self.control, self.health = free_port(), free_port()
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, server: ApiServer) -> None:
        arguments = {
            "namespace-of-operator": OPERATOR_SPACE,
            "identity": self.name,
            "address": "127.0.0.1",
            "control-port": self.control,
            "health-port": self.health,
            "operator-url": f"https://{SERVICE}:8443",
            "kubeconfig": server.kubeconfig(self.log.with_suffix(".kubeconfig")),
        }
        command = [sys.executable, "-m", "trainmaster_operator.runtime.kubernetes_operator", "--plain-metrics"]
        command += [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
        with self.log.open("wb") as log:
            tied = partial(processes.die_with_parent, os.getpid())
            self._process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, preexec_fn=tied)
        await until(self._ready, f"{self.name} is ready")

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            await self._process.wait()

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    async def usage(self) -> tuple[float, float]:
        """CPU seconds so far, and MiB of memory now."""
        text = await asyncio.to_thread(self._get, "/metrics")
        found = {
            name: float(re.findall(rf"^process_{name} (\S+)", text, re.M)[0])
            for name in ("cpu_seconds_total", "resident_memory_bytes")
        }
        return found["cpu_seconds_total"], found["resident_memory_bytes"] / 2**20

    async def _ready(self) -> bool:
        assert self._process is not None
        if self._process.returncode is not None:
            raise SystemExit(f"{self.name} has ended:\n{self.log.read_text()[-4000:]}")
        try:
            await asyncio.to_thread(self._get, "/readyz")
        except OSError:
            return False
        return True

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.health}{path}", timeout=ANSWER_S) as answer:
            return str(answer.read(), "utf-8")


class World:
    """Jobs, the pods that the operator has made for them, and agents in those pods."""

    def __init__(self, jobs: int, pods: int, folder: Path) -> None:
        self.jobs = [f"job-{number}" for number in range(jobs)]
        self.pods, self._folder = pods, folder
        self.store = MemoryStore(now=time.time)
        self.server = ApiServer(self.store)
        self.replicas = [Replica(name, folder) for name in ("one", "two")]
        self._agents: asyncio.subprocess.Process | None = None

    @property
    def leader(self) -> Replica:
        holder = self.store.find(LEASE, OPERATOR_SPACE, "trainmaster-operator")["spec"]["holderIdentity"]
        return next(replica for replica in self.replicas if replica.name == holder)

    def status(self, job: str) -> Object:
        found: Object = self.store.find(JOB, SPACE, job).get("status") or {}
        return found

    async def open(self) -> None:
        """Everything is there, and no agent has spoken yet."""
        for replica in self.replicas:
            await replica.start(self.server)
        for job in self.jobs:
            self.store.create(JOB, _job(job, self.pods))
        made = self.pods * len(self.jobs)
        await until(lambda: len(self.store.list(POD, SPACE).items) == made, f"{made} pods are there", 0.2)
        world = {
            "name": SERVICE,
            "bundle": self.store.find(CONFIG_MAP, SPACE, "trainmaster-ca")["data"]["ca.crt"],
            "replicas": [("127.0.0.1", replica.control) for replica in self.replicas],
            "settle_s": SETTLE_S,
            "agents": [self._agent(pod) for pod in self.store.list(POD, SPACE).items],
        }
        world["agents"].sort(key=lambda agent: (agent["identity"]["job"], agent["identity"]["slot"]))
        path = self._folder / "world.json"
        path.write_text(json.dumps(world))
        self._agents = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.fleet_agents", str(path)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**24,
        )
        for pod in self.store.list(POD, SPACE).items:
            self._run_pod(pod)

    async def close(self) -> None:
        if self._agents is not None and self._agents.returncode is None:
            self._agents.kill()
            await self._agents.wait()
        for replica in self.replicas:
            await replica.end(signal.SIGKILL)

    async def tell(self, do: str, **more: Any) -> list[float]:
        """Has the agents do something; returns after how many seconds each of them was through."""
        self.command(do, **more)
        return await self.answer()

    def command(self, do: str, **more: Any) -> None:
        assert self._agents is not None
        assert self._agents.stdin is not None
        self._agents.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")

    async def answer(self) -> list[float]:
        assert self._agents is not None
        assert self._agents.stdout is not None
        async with asyncio.timeout(WAIT_S):
            line = await self._agents.stdout.readline()
        if not line:
            raise SystemExit("the simulated agents have ended")
        took: list[float] = json.loads(line)
        return took

    def _agent(self, pod: Object) -> Object:
        meta, env = pod["metadata"], {v["name"]: v.get("value") for v in pod["spec"]["containers"][0]["env"]}
        identity = {
            "job_uid": env["TRAINMASTER_JOB_UID"],
            "namespace": SPACE,
            "job": env["TRAINMASTER_JOB"],
            "role": "worker",
            "slot": int(env["TRAINMASTER_SLOT"]),
            "incarnation": 0,
            "pod_uid": meta["uid"],
        }
        token = _token(meta)
        self.server.token_of[token] = {
            "authenticated": True,
            "audiences": ["trainmaster"],
            "user": {
                "username": f"system:serviceaccount:{SPACE}:default",
                "extra": {
                    "authentication.kubernetes.io/pod-name": [meta["name"]],
                    "authentication.kubernetes.io/pod-uid": [meta["uid"]],
                },
            },
        }
        return {"identity": identity, "token": token}

    def _run_pod(self, pod: Object) -> None:
        meta = pod["metadata"]
        bound = self.store.bind(SPACE, meta["name"], f"node-{hash(meta['name']) % 100}")
        started = {"name": bound["spec"]["containers"][0]["name"], "ready": True, "state": {"running": {}}}
        status = {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": [started]}
        self.store.update_status(POD, {**bound, "status": status})


@asynccontextmanager
async def opened(jobs: int, pods: int) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-fleet-")))
        world = World(jobs, pods, folder)
        await world.server.start()
        stack.push_async_callback(world.server.stop)
        stack.push_async_callback(world.close)
        try:
            await world.open()
            yield world
        except BaseException:
            for replica in world.replicas:
                if replica.log.exists():
                    sys.stderr.write(f"--- {replica.name}\n{replica.log.read_text()[-3000:]}\n")
            raise


class Results:
    def __init__(self, system: str) -> None:
        self.system = system
        self.cases: dict[str, Case] = {}

    def told(self, case: str, unit: str, sample: float) -> None:
        self.cases.setdefault(case, Case(case, self.system, unit)).samples.append(sample)
        print(f"{self.system:20} {case:44} {sample:10.3f} {unit}", flush=True)

    def spread(self, case: str, took: list[float]) -> None:
        whole = Case(case, self.system, "s", took)
        for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            self.told(f"{case}, {name}", "s", whole.quantile(q))


async def one_job(agents: int, rounds: int) -> list[Case]:
    results = Results(f"{agents} agents")

    async def measured(case: str, do: str, **more: Any) -> None:
        """What the agents are told to do, with the seconds that it took them and the leader's CPU."""
        leader = world.leader
        before = await leader.usage()
        results.spread(case, await world.tell(do, **more))
        results.told(f"{case}, the leader's CPU", "s", (await leader.usage())[0] - before[0])

    async with opened(1, agents) as world:
        (job,) = world.jobs
        await measured("all join for the first time", "start")
        await world.tell("settle")
        for number in range(rounds):
            await measured("a rank dies", "die", job=job, slot=(number * 37) % agents, behind=False)
            await world.tell("settle")
            await measured("a rank dies, all behind it", "die", job=job, slot=number, behind=True)
            await world.tell("settle")
        await rest(world, results)
        for _ in range(2):
            await measured("every connection breaks", "drop")
        leader = world.leader
        world.command("follow")
        leader.stop()
        results.spread("the leader is told to end", await world.answer())
        results.told("status", "bytes", len(json.dumps(world.status(job), separators=(",", ":"))))
    return list(results.cases.values())


async def many_jobs(jobs: int, pods: int) -> list[Case]:
    results = Results(f"{jobs} jobs of {pods}")
    async with opened(jobs, pods) as world:
        results.spread("all join for the first time", await world.tell("start"))
        await world.tell("settle")
        await rest(world, results)
    return list(results.cases.values())


async def rest(world: World, results: Results) -> None:
    """All train, and nothing happens."""
    await asyncio.sleep(REST_S)  # until everybody reports at its own time
    before = await world.leader.usage()
    await asyncio.sleep(REST_S)
    after = await world.leader.usage()
    results.told("the leader's CPU while all train", "s/s", (after[0] - before[0]) / REST_S)
    results.told("the leader's memory", "MiB", after[1])


def failed(cases: list[Case], agents: int) -> list[str]:
    """Goals that were missed, in words."""
    worst = {case.case: max(case.samples) for case in cases}
    limits = {
        "a rank dies, p99": GOALS_S.get(agents, 3.0),
        "every connection breaks, max": RECONNECTED_S,
        "the leader is told to end, max": RECONNECTED_S,
        "status": STATUS_BYTES,
    }
    return [
        f"{agents} agents: {name}: {worst[name]:.2f} > {limit}"
        for name, limit in limits.items()
        if worst.get(name, 0.0) > limit
    ]


async def until(true: Callable[[], Any], what: str, pause_s: float = 0.05) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        answer = true()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {WAIT_S:g} s: {what}")
        await asyncio.sleep(pause_s)


def _job(name: str, pods: int) -> Object:
    container = {"name": "main", "image": "python:3.12", "command": ["python", "train.py"]}
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": JOB,
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {
            "framework": "PyTorch",
            "workers": {"replicas": pods, "template": {"spec": {"containers": [container]}}},
            "recovery": {"budget": {"inPlace": 10000, "perCause": 10000}},
        },
    }


def _token(meta: Object) -> str:
    """As long as a ServiceAccount's token, and as well bound to its pod, but nobody's signature."""
    pod = {"name": meta["name"], "uid": meta["uid"]}
    claims = {
        "aud": ["trainmaster"],
        "exp": 2_000_000_000,
        "iss": "https://kubernetes.default.svc.cluster.local",
        "kubernetes.io": {"namespace": SPACE, "node": {"name": "node"}, "pod": pod},
        "sub": f"system:serviceaccount:{SPACE}:default",
    }
    return ".".join(
        base64.urlsafe_b64encode(part).decode().rstrip("=")
        for part in (b"{}" * 30, json.dumps(claims).encode(), b"s" * 256)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="*", default=AGENTS)
    parser.add_argument("--rounds", type=int, default=10, help="of each kind")
    parser.add_argument("--jobs", type=int, default=JOBS, help="of 8 agents each, which train side by side")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/ as it is")
    given = parser.parse_args()
    cases: list[Case] = []
    missed: list[str] = []
    for agents in given.agents:
        found = asyncio.run(one_job(agents, given.rounds))
        cases += found
        missed += failed(found, agents)
    if given.jobs:
        cases += asyncio.run(many_jobs(given.jobs, 8))
    print(table(cases))
    if not given.no_write:
        name = name_of("fleet", [*given.agents, *([given.jobs] if given.jobs else [])], [*AGENTS, JOBS])
        print(f"written to {write(name, cases)}; load average {os.getloadavg()[0]:.1f}")
    print("\n".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
