"""One simulated world: a store, a kubelet, storage, at most one operator, and a log of all that happens."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

from simulation.virtual.autoscaler import GrowingCluster, Growth
from simulation.virtual.cluster_faults import Rates
from simulation.virtual.invariants import Watch
from simulation.virtual.operator_process import OperatorProcess
from simulation.virtual.virtual_agent import SimAgent
from simulation.virtual.virtual_kubelet import SimKubelet
from simulation.virtual.virtual_leaderless_restart import Word
from simulation.virtual.virtual_ranks import SimRank, SimRound, StoreHost, Upload
from simulation.virtual.virtual_storage import Storage
from trainmaster.contract.wire import Directive, JoinRequest, Report, StoreAddress
from trainmaster_operator.api.api_group import API_VERSION
from trainmaster_operator.cluster.port import JOB, POD, NotFound, Object
from trainmaster_operator.control.fleet import Refused
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.status_mapping import read_status
from trainmaster_operator.runtime.reconcile import Policies
from trainmaster_operator.runtime.virtual_clock import VirtualClock

MOST_PODS = 4
LOST_WORDS = 0.1  # the share of agents' datagrams
LATENCY_S = (0.0005, 0.004)  # of the API server when nothing is wrong with it

DiesAt = Callable[[int, Literal["before", "after"]], bool]

ENCODED = 1 / 16
"""The share of schedules whose messages go through the wire's encoding. It has tests of its own, and it is slow."""


@dataclass(frozen=True)
class Workload:
    """The job, and how fast its world is. Times are seconds."""

    replicas: int = 3
    ranks_per_pod: int = 1
    steps: int = 40
    save_every: int = 5
    step_s: float = 0.2
    hang_limit_s: float = 6.0
    agent_lost_s: float = 10.0
    budget: dict[str, Any] = field(
        default_factory=lambda: {"inPlace": 1000, "pod": 1000, "full": 1000, "perCause": 1000}
    )
    restart_s: tuple[float, float] = (0.05, 1.0)  # how long a dead operator is away
    takeover: bool = True
    script: bool = False  # a user's own script: no stop_at, no storage fence, steps counted from 0 in each process
    spares: int = 0
    elastic: bool = False  # from one pod to MOST_PODS
    growth: Growth | None = None  # of the cluster; None: there is always a place

    def job(self) -> Object:
        what = self._script() if self.script else self._training()
        saved = {} if self.script else {"every": self.save_every}
        return {
            "apiVersion": API_VERSION,
            "kind": JOB,
            "metadata": {"name": "job", "namespace": "space"},
            "spec": {
                **what,
                "checkpoint": {"directory": "/checkpoints", **saved},
                "recovery": {
                    "budget": self.budget,
                    "hang": {"limitSeconds": int(self.hang_limit_s)},
                    "agentLostSeconds": int(self.agent_lost_s),
                },
                **self._waiting(),
            },
        }

    def _waiting(self) -> Object:
        if self.growth is None:
            return {}
        limit = {} if self.growth.pending_s is None else {"pendingDeadlineSeconds": self.growth.pending_s}
        return {"scheduling": {"releaseSeconds": self.growth.release_s}, **limit}

    def _workers(self) -> Object:
        sizes = {"min": 1, "max": MOST_PODS} if self.elastic else {}
        return {"replicas": self.replicas, "ranksPerPod": self.ranks_per_pod, "spares": self.spares, **sizes}

    def _training(self) -> Object:
        return {
            "workers": self._workers(),
            "training": {
                "data": {"path": "/data"},
                "steps": self.steps,
                "optimizer": {"lr": 1e-3},
                "batch": {"global": (12 if self.elastic else self.replicas) * self.ranks_per_pod},
            },
        }

    def _script(self) -> Object:
        return {"framework": "PyTorch", "workers": {**self._workers(), "template": self.template(0)}}

    def template(self, number: int) -> Object:
        """Of a script. `number`: which command it has; the job begins with 0."""
        command = ["python", "train.py", *(["--variant", str(number)] if number else [])]
        return {"spec": {"containers": [{"name": "trainer", "command": command}]}}


class World:
    namespace = "space"
    name = "job"

    def __init__(self, seed: str, workload: Workload, clock: VirtualClock, policies: Policies | None = None) -> None:
        self.workload = workload
        self.policies = policies
        self.clock = clock
        self.noted: list[tuple[float, str]] = []
        self.violations: list[str] = []
        self._seed = seed
        self.watch = Watch(self)
        self.store = MemoryStore(now=self.clock.now, history=512, on_change=self.watch.changed, shares=True)
        self.encodes = self.chance("wire").random() < ENCODED  # what agents and operators tell each other
        self.rates = Rates()  # of faults between the operator and its API server
        self.latency_s = LATENCY_S
        self.outage_until = 0.0
        self.skew_s = 0.0  # of operators' wall clocks
        self.dies_at: DiesAt | None = None  # a write of the first operator, and whether "before" or "after" it
        self.writes = 0  # of the first operator
        self.storage = Storage()
        self.uploads: dict[Upload, None] = {}
        self.kubelet = SimKubelet(self)
        self.cluster = GrowingCluster(self, workload.growth) if workload.growth is not None else None
        self.operator: OperatorProcess | None = None
        self.operators = 0
        self.release = 1  # of operators that start from now on
        self.processes: list[OperatorProcess] = []
        self.restarts_operators = True
        self.finished = asyncio.Event()
        self.comes_back = 0  # deletions of the job after which somebody creates it again
        self.on_step: dict[int, list[asyncio.Event]] = {}
        self.highest_step = 0
        self.newest_round = 0  # that has stepped
        self._jobs: list[str] = []  # uids, in the order of their creation
        self._newest = (0, 0)  # job and round that have stepped
        self.granted: dict[int, None] = {}  # rounds that agents opened by themselves
        self.removed_pods: dict[str, None] = {}  # uids, by force, by a person: their processes may live on unknown
        self._on_event: dict[int, asyncio.Event] = {}
        self._chance = self.chance("world")
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._stores: dict[str, StoreHost] = {}
        self._meetings: dict[str, SimRound] = {}
        self._listeners: dict[StoreAddress, SimAgent] = {}
        self._words = self.chance("words")

    def chance(self, name: str) -> random.Random:
        """A source of its own for each part, so that more draws in one leave the others as they are."""
        return random.Random(f"{self._seed}/{name}")

    def note(self, words: str) -> None:
        self.noted.append((self.clock.elapsed, words))
        if self._on_event and (waiting := self._on_event.pop(len(self.noted), None)):
            waiting.set()

    def violation(self, words: str) -> None:
        if words in self.violations:
            return  # seen at each write from then on
        self.violations.append(words)
        self.note(f"VIOLATION: {words}")

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def end_tasks(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    # -- the job

    def create_job(self) -> None:
        self._jobs.append(self.store.create(JOB, self.workload.job())["metadata"]["uid"])

    def job(self) -> Object | None:
        try:
            return self.store.find(JOB, self.namespace, self.name)
        except NotFound:
            return None

    def status(self) -> JobState:
        return read_status((self.job() or {}).get("status"))

    def edit_job(self, patch: Object) -> None:
        if self.job() is not None:
            self.store.patch(JOB, self.namespace, self.name, patch)

    def job_deleted(self) -> None:
        if not self.comes_back:
            self.finished.set()

    def job_ended(self) -> None:
        self.finished.set()

    def pods(self) -> list[Object]:
        return self.store.list(POD, self.namespace).items

    # -- the operator

    def start_operator(self, *, takeover: bool | None = None) -> None:
        """Agents talk with this one from now on, whether the one before still runs or not."""
        self.operators += 1
        self.note(f"operator-{self.operators} starts")
        self.operator = OperatorProcess(self, self.operators, self.workload.takeover if takeover is None else takeover)
        self.processes.append(self.operator)

    def set_weather(self, rates: Rates | None = None, latency_s: tuple[float, float] | None = None) -> None:
        """How the API server behaves from now on, to this operator and to those after it."""
        self.rates = rates or self.rates
        self.latency_s = latency_s or self.latency_s
        if self.operator is not None:
            self.operator.cluster.rates, self.operator.cluster.latency_s = self.rates, self.latency_s

    def operator_died(self, process: OperatorProcess) -> None:
        if self.operator is process:
            self.operator = None
            if self.restarts_operators:
                self.spawn(self._restart_operator())

    async def _restart_operator(self) -> None:
        await asyncio.sleep(self._chance.uniform(*self.workload.restart_s))
        if self.operator is None:
            self.start_operator()

    async def send(self, agent: SimAgent, token: str, message: JoinRequest | Report) -> Directive:
        await asyncio.sleep(self._chance.uniform(0.0002, 0.003))
        if self.operator is None or agent.cut_off or not agent.alive:
            raise ConnectionError("nobody answers")
        refused: Refused | None = None
        try:
            directive = await self._leader_or(self.operator).send(token, message)
        except Refused as error:
            refused = error
        await asyncio.sleep(self._chance.uniform(0.0002, 0.003))
        if agent.cut_off:
            raise ConnectionError("the reply was lost")
        if refused is not None:
            raise refused
        return directive

    def reaches_api(self, agent: SimAgent) -> bool:
        """Whether the API server would take a connection from this agent."""
        return not agent.cut_off and self.clock.monotonic() >= self.outage_until

    def _leader_or(self, reached: OperatorProcess) -> OperatorProcess:
        """One that doesn't lead knows who does, and sends agents there (421)."""
        if reached.leads:
            return reached
        return next((process for process in self.processes if process.leads), reached)

    # -- agents among themselves

    def listen(self, agent: SimAgent) -> StoreAddress:
        address = StoreAddress("10.0.0.2", 20000 + len(self._listeners))
        self._listeners[address] = agent
        return address

    def say(self, to: StoreAddress, word: Word) -> None:
        """A datagram: it may be late, and is lost now and then."""

        def arrive() -> None:
            agent = self._listeners[to]
            if agent.alive:
                agent.grant.heard(word)

        if self._words.random() >= LOST_WORDS:
            self.later(self._words.uniform(0.0002, 0.005), arrive)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            act()

        self.spawn(wait())

    # -- ranks

    def new_store(self) -> StoreHost:
        store = StoreHost(StoreAddress("10.0.0.1", 20000 + len(self._stores)))
        self._stores[store.address] = store
        return store

    def meet(self, address: str, round: int, world_size: int, rank: SimRank) -> None:
        store = self._stores.get(address)
        if store is None or not store.alive:
            rank.exit(1, f"no store listens at {address}")
            return
        store.rounds[round] = None
        if len(store.rounds) > 1:
            self.violation(f"store {address} serves rounds {', '.join(map(str, store.rounds))}")
        meeting = self._meetings.get(address)
        if meeting is None:
            meeting = self._meetings[address] = SimRound(self, store, round, world_size)
        self.watch.rank_joined(rank)
        meeting.join(rank)

    def stepped(self, round: int, step: int, agents: list[SimAgent]) -> None:
        job = self._jobs.index(agents[0].identity.job_uid)
        if (job, round) < self._newest and not self._unknown(agents):
            whose = "" if job == self._newest[0] else " of an earlier job"
            self.violation(f"ranks of round {round}{whose} still step beside those of round {self._newest[1]}")
        self._newest = max(self._newest, (job, round))
        self.newest_round = self._newest[1]
        self.highest_step = max(self.highest_step, step)
        for at in [at for at in self.on_step if at <= step]:
            for event in self.on_step.pop(at):
                event.set()

    def _unknown(self, agents: list[SimAgent]) -> bool:
        """One of them is out of the operator's reach, or told to end: then a fence alone keeps its ranks harmless. A
        script has no fence: nobody may take its place but where a person has removed its pod by force."""
        if self.workload.script:
            return any(agent.identity.pod_uid in self.removed_pods for agent in agents)
        stay = {p["metadata"]["uid"] for p in self.pods() if not p["metadata"].get("deletionTimestamp")}
        return any(agent.cut_off or agent.identity.pod_uid not in stay for agent in agents)

    async def until_event(self, number: int) -> None:
        """Until so many events have been noted."""
        if len(self.noted) < number:
            await self._on_event.setdefault(number, asyncio.Event()).wait()

    async def until_step(self, step: int) -> None:
        event = asyncio.Event()
        self.on_step.setdefault(step, []).append(event)
        if self.highest_step >= step:
            event.set()
        await event.wait()

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            self.violation(f"the simulation broke: {type(error).__name__}: {error}")
