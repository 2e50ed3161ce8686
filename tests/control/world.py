"""Replicas of an operator with a real TLS socket each, over one memory store, for agents that are real clients."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.runtime import fakes
from trainmaster.agent.shell.control_client import Access, Connection
from trainmaster.contract.wire import Directive, DirectiveState, Identity, JoinRequest, Report
from trainmaster_operator.cluster.port import JOB, POD, NotFound, Object, TokenReview, Unavailable
from trainmaster_operator.control.http_server import ControlServer, Limits, listening_socket
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.manifests.agent_identity import AUDIENCE
from trainmaster_operator.manifests.job_pod import pod_name, render_pod
from trainmaster_operator.manifests.services import build_service
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.facts.observation import Decision, StandbyAnswers
from trainmaster_operator.planning.status_mapping import read_status, write_status
from trainmaster_operator.runtime.authenticators import PodTokens
from trainmaster_operator.runtime.clock import Clock, RealClock
from trainmaster_operator.runtime.leader.lease import NotLeading
from trainmaster_operator.runtime.operator import Operator
from trainmaster_operator.runtime.operator_settings import Settings
from trainmaster_operator.runtime.reconcile import Policies
from trainmaster_operator.runtime.tls_secret_or_folder import Authority

SERVICE = "localhost"
NAMESPACE = "trainmaster-system"


class Api(MemoryCluster):
    """An API server that knows tokens, as long as the pods live to which they are bound."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: dict[str, TokenReview] = {}
        self.away = False
        self.reviews = 0

    async def review_token(self, token: str, audience: str) -> TokenReview | None:
        self.reviews += 1
        if self.away:
            raise Unavailable("the API server is away")
        review = self.tokens.get(token) if audience == AUDIENCE else None
        if review is None or not review.pod_uid:
            return review
        with contextlib.suppress(NotFound):
            if self.store.find(POD, review.namespace, review.pod)["metadata"]["uid"] == review.pod_uid:
                return review
        return None

    def issue(self, pod: Object, token: str) -> str:
        meta = pod["metadata"]
        name = f"system:serviceaccount:{meta['namespace']}:default"
        self.tokens[token] = TokenReview(name, meta["namespace"], meta["name"], meta["uid"])
        return token

    def add_job(self, name: str = "job", slots: int = 2) -> Object:
        made = self.store.create(JOB, fakes.job(name))
        status = write_status(JobState(round=1, incarnations=",".join(["0"] * slots)))
        return self.store.update_status(JOB, {**made, "status": status})

    def add_pod(self, job: Object, slot: int, incarnation: int = 0) -> Object:
        name = pod_name(job["metadata"]["name"], "worker", slot, incarnation)
        labels = {"trainmaster.dev/role": "worker", "trainmaster.dev/slot": str(slot)}
        labels["trainmaster.dev/incarnation"] = str(incarnation)
        obj = fakes.pod(name, job)
        obj["metadata"]["labels"].update(labels)
        return self.store.create(POD, obj)

    def replace_pod(self, job: Object, slot: int, incarnation: int) -> Object:
        """What the reconciler does, in its order."""
        current = self.store.find(JOB, "space", job["metadata"]["name"])
        state = read_status(current["status"])
        counts = state.incarnations.split(",")
        counts[slot] = str(incarnation)
        status = write_status(state.model_copy(update={"incarnations": ",".join(counts)}))
        self.store.update_status(JOB, {**current, "status": status})
        old = pod_name(job["metadata"]["name"], "worker", slot, incarnation - 1)
        self.store.delete(POD, "space", old, grace_s=0)
        return self.add_pod(job, slot, incarnation)


def identity(job: Object, pod: Object, **changes: Any) -> Identity:
    labels = pod["metadata"]["labels"]
    truth = {
        "job_uid": job["metadata"]["uid"],
        "namespace": "space",
        "job": job["metadata"]["name"],
        "role": "worker",
        "slot": int(labels["trainmaster.dev/slot"]),
        "incarnation": int(labels["trainmaster.dev/incarnation"]),
        "pod_uid": pod["metadata"]["uid"],
    }
    return Identity(**{**truth, **changes})


class Place:
    """Who leads is the test's decision."""

    absence = None
    standby_answers = StandbyAnswers()

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.won = asyncio.Event()

    @property
    def leading(self) -> bool:
        return self.won.is_set()

    def check(self) -> None:
        if not self.leading:
            raise NotLeading("another leads")

    async def acquire(self) -> int:
        await self.won.wait()
        return self.epoch

    async def hold(self) -> None:
        await asyncio.Event().wait()

    async def outgrow(self, epoch: int) -> None:
        self.epoch = max(self.epoch, epoch + 1)

    async def release(self) -> None:
        self.won.clear()


@dataclass
class Replica:
    operator: Operator
    authority: Authority
    server: ControlServer
    place: Place
    port: int
    leader: str = ""  # as this one knows it while it doesn't lead

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"https://{SERVICE}:{self.port}"

    async def lead(self) -> None:
        self.place.won.set()
        while not self.operator.ready:
            await asyncio.sleep(0.001)


def policies() -> Policies:
    """Plans nothing; tells each agent to wait."""

    def directives(spec: Any, status: Any, observed: Any) -> Callable[[int], Directive]:
        return lambda slot: Directive(observed.epoch, DirectiveState.WAIT, status.round, f"{status.round}")

    return Policies(
        lambda spec, status, observed, now: Decision(status), directives, render_pod, build_service, pod_name
    )


@asynccontextmanager
async def replica(
    api: Api, epoch: int = 1, limits: Limits | None = None, clock: Clock | None = None, leads: bool = True
) -> AsyncIterator[Replica]:
    clock = clock or RealClock()
    authority = Authority(api, clock, NAMESPACE, [SERVICE])
    await authority.refresh()
    place = Place(epoch)
    operator = Operator(
        api,
        clock,
        random.Random(epoch),
        Settings(operator_url="https://operator", identity=f"replica-{epoch}"),
        policies(),
        PodTokens(api, clock, authority.session_key),
        place,
    )
    known: list[Replica] = []
    server = ControlServer(
        operator.fleet,
        leader=lambda: None if place.leading else known[0].leader,
        tls=authority.tls,
        limits=limits,
    )
    sock = listening_socket("127.0.0.1", 0)
    made = Replica(operator, authority, server, place, sock.getsockname()[1])
    known.append(made)
    await server.start(sock)
    running = asyncio.create_task(operator.run())
    if leads:
        await made.lead()
    try:
        yield made
    finally:
        await server.stop()
        running.cancel()
        await asyncio.wait([running])


class Agent:
    """The real client, with a token and certificates in files."""

    def __init__(self, folder: Path, url: str, bundle: str, token: str, me: Identity) -> None:
        folder.mkdir(exist_ok=True)
        self.token_file, self.ca_file = folder / "token", folder / "ca.crt"
        self.token_file.write_text(token)
        self.ca_file.write_text(bundle)
        self.me = me
        self.access = Access(url, str(self.token_file), str(self.ca_file))
        self.connection = Connection(self.access)

    async def report(self, **fields: Any) -> Directive:
        return await self.connection.report(Report(self.me, round=1, **fields), 20.0)

    async def join(self, seen_tag: str = "") -> Directive:
        return await self.connection.join(JoinRequest(self.me, seen_tag=seen_tag), 20.0)

    def close(self) -> None:
        self.connection.close()


def trusting(bundle: str) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=bundle)
