"""The operator's process: it can be killed between any two steps, and what it had in memory is gone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from simulation.virtual.cluster_faults import OperatorCrash
from simulation.virtual.faulty_cluster import FaultyCluster
from trainmaster.contract.wire import Directive, Identity, JoinRequest, Report, decode, encode
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.cluster.port import EVENT, LEASE, Object
from trainmaster_operator.control.authentication import BEARER, Credential
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.manifests.pod_defaults import PodDefaults
from trainmaster_operator.runtime.leader.lease import LeaseSettings, NotLeading
from trainmaster_operator.runtime.operator import Operator, default_policies
from trainmaster_operator.runtime.operator_settings import Settings
from trainmaster_operator.runtime.reconcile import Policies
from trainmaster_operator.runtime.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from simulation.virtual.virtual_world import World


STOP_S = 30.0
PATIENCE_S = 4.0
"""How long agents wait for an answer before they ask again."""


class Connection(FaultyCluster):
    """Its death is that of the whole process, at the very moment."""

    process: OperatorProcess

    def dies_at(self, number: int, when: Literal["before", "after"]) -> bool:
        asked = self.process.world.dies_at if self.process.first else None
        return super().dies_at(number, when) or (asked is not None and asked(number, when))

    def die(self) -> None:
        super().die()
        self.process.crash(f"at write {self.writes}, {self.written[-1]}" if self.written else "before any write")


class NodeClock:
    """An operator's: its wall clock may be wrong."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._clock: VirtualClock = world.clock

    def monotonic(self) -> float:
        return self._clock.elapsed

    def now(self) -> float:
        return self._clock.now() + self._world.skew_s


def _released(policies: Policies, release: int) -> Policies:
    """The policies of one release of the operator: each makes pods in a form of its own."""

    def render_pod(job: DistributedTrainingJob, role: str, defaults: PodDefaults) -> Object:
        pod = policies.render_pod(job, role, defaults)
        return {**pod, "spec": {**pod["spec"], "priorityClassName": f"release-{release}"}}

    return replace(policies, render_pod=render_pod)


class OperatorProcess:
    def __init__(self, world: World, number: int, takeover: bool) -> None:
        self.world = world
        self.name = f"operator-{number}"
        self.dead = False
        self.cluster = Connection(
            MemoryCluster(world.store),
            world.chance(f"{self.name}'s connection"),
            rates=world.rates,
            latency_s=world.latency_s,
            counts=lambda verb, kind: kind not in (LEASE, EVENT),
            uncounted=world.chance(f"{self.name}'s leases and events"),
        )
        self.cluster.process = self
        self.first = number == 1
        if world.clock.monotonic() < world.outage_until:
            world.spawn(self.cluster.outage(world.outage_until - world.clock.monotonic()))
        growth, pods = world.workload.growth, PodDefaults("http://operator", trainer_image=f"trainer:{world.release}")
        self.operator = Operator(
            self.cluster,
            NodeClock(world),
            world.chance(self.name),
            Settings(
                operator_url="http://operator",
                identity=self.name,
                pods=pods if growth is None else replace(pods, in_cluster=True),
                judge_nodes=growth is not None,
                taint_nodes=growth is not None and growth.may_taint,
                list_nodes=growth is not None and growth.may_list,
                lease=LeaseSettings(takeover=takeover),
                workers=2,
            ),
            _released(world.policies or default_policies(), world.release),
            nodes=world.cluster,
        )
        self._calls: dict[asyncio.Task[Any], None] = {}  # agents that wait for an answer
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)

    @property
    def leads(self) -> bool:
        return not self.dead and self.operator.leader.leading

    def crash(self, why: str) -> None:
        """SIGKILL: nothing that it still wants to do takes effect."""
        if self.dead:
            return
        self.world.note(f"{self.name} dies {why}")
        self.dead = True
        if not self.cluster.crashed:
            FaultyCluster.die(self.cluster)
        self._task.cancel()
        calls, self._calls = self._calls, {}
        for call in calls:
            call.cancel()
        self.world.operator_died(self)

    async def stop(self) -> None:
        """SIGTERM."""
        if self.dead:
            return
        self.operator.stop()
        await asyncio.wait([self._task], timeout=STOP_S)
        if not self._task.done():
            self.world.violation(f"{self.name} did not stop within {STOP_S:g} s")
            self.crash("since it did not stop")
        self.dead = True

    async def send(self, token: str, message: JoinRequest | Report) -> Directive:
        """A request over HTTP, as far as the fleet can tell. Raises Refused, ConnectionError."""
        if self.dead:
            raise ConnectionError(f"{self.name} is dead")
        if self.world.encodes:
            message = decode(type(message), encode(message))
        call = asyncio.current_task()
        assert call is not None
        self._calls[call] = None
        try:
            directive = await self._handle(token, message)
        except asyncio.CancelledError:
            if call in self._calls or call.uncancel():
                raise  # somebody wants the agent's own end
            raise ConnectionError(f"{self.name} died") from None
        finally:
            self._calls.pop(call, None)
        return decode(Directive, encode(directive)) if self.world.encodes else directive

    async def _handle(self, token: str, message: JoinRequest | Report) -> Directive:
        frozen_s = self.cluster.frozen_s
        if frozen_s > 0:
            await asyncio.sleep(min(frozen_s, PATIENCE_S))
        if frozen_s > PATIENCE_S:
            raise ConnectionError(f"{self.name} doesn't answer")
        fleet = self.operator.fleet

        async def claim() -> Identity:
            return message.identity

        proven = (await fleet.admit(Credential(BEARER, token), claim)).identity
        if isinstance(message, JoinRequest):
            return await fleet.join(proven, message)
        return await fleet.report(proven, message)

    async def _run(self) -> None:
        try:
            await self.operator.run()
        except OperatorCrash:
            assert self.dead
        except NotLeading as error:
            self.crash(f"itself: {error}")
        except Exception as error:  # noqa: BLE001 - told as a violation
            self.world.violation(f"{self.name} ended with {type(error).__name__}: {error}")
            self.crash("of an error")
