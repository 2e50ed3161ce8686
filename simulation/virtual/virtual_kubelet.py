"""A simulated scheduler and kubelet: pods start and end after seeded delays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from simulation.virtual.virtual_agent import SimAgent
from simulation.virtual.virtual_reporter import token_hash
from trainmaster_operator.cluster.port import DELETED, POD, Conflict, NotFound, Object, WatchEvent

if TYPE_CHECKING:
    from simulation.virtual.virtual_world import World


COLLECTED_S = (40.0, 100.0)  # until a control plane removes the pods of a node that does not exist any more


class SimKubelet:
    def __init__(self, world: World) -> None:
        self.agents: dict[str, SimAgent] = {}  # by pod uid, the living and the dead
        self._world = world
        self._store = world.store
        self._chance = world.chance("kubelet")
        self._known: set[str] = set()
        self._ending: set[str] = set()
        self._without_node: set[str] = set()

    def living(self) -> list[SimAgent]:
        return [agent for agent in self.agents.values() if agent.alive]

    def saw(self, event: WatchEvent) -> None:
        """Called inside a write of a pod: only starts tasks."""
        uid, name = event.object["metadata"]["uid"], event.object["metadata"]["name"]
        if event.type == DELETED:
            self._world.spawn(self._kill_late(uid))
        elif uid not in self._known:
            self._known.add(uid)
            self._world.spawn(self._start(name, uid))
        elif event.object["metadata"].get("deletionTimestamp") and uid not in self._ending:
            self._ending.add(uid)
            self._world.spawn(self._terminate(name, uid))

    def ended(self, agent: SimAgent, exit_code: int, message: str) -> None:
        self._world.spawn(self._tell_end(agent, exit_code, message))

    async def _start(self, name: str, uid: str) -> None:
        await asyncio.sleep(self._chance.uniform(0.01, 0.5))
        if self._mine(name, uid) is None:
            return
        node = f"node-{self._chance.randrange(4)}"
        if self._world.cluster is not None:
            await self._world.cluster.place(name, uid)
        else:
            try:
                self._store.bind(self._world.namespace, name, node)
            except (NotFound, Conflict):
                return
        await asyncio.sleep(self._chance.uniform(0.01, 1.0))
        if self._to_start(name, uid) is None:
            return
        self._update(name, uid, phase="Running", tokenSha256=token_hash(uid))
        await asyncio.sleep(self._chance.uniform(0.01, 0.2))
        if (pod := self._to_start(name, uid)) is not None:
            agent = self.agents[uid] = SimAgent(self._world, pod)
            agent.start()

    def _to_start(self, name: str, uid: str) -> Object | None:
        pod = self._mine(name, uid)
        return None if pod is None or pod["metadata"].get("deletionTimestamp") or uid in self._without_node else pod

    async def _terminate(self, name: str, uid: str) -> None:
        await asyncio.sleep(self._chance.uniform(0.01, 0.8))
        while self._is_unheard(uid):
            if self._mine(name, uid) is None:
                return
            await asyncio.sleep(1.0)  # nobody tells it to end, nor that it has ended
        agent = self.agents.get(uid)
        grace_s = self._grace_s(name, uid)
        if agent is not None:
            agent.terminate(grace_s)
        while agent is not None and agent.alive:
            await asyncio.sleep(0.1)
            if self._grace_s(name, uid) < grace_s:
                agent.die(137, "its grace was made shorter", told=True)
        await asyncio.sleep(0.01)
        if self._mine(name, uid) is not None:
            self._store.delete(POD, self._world.namespace, name, uid=uid, grace_s=0)

    def _grace_s(self, name: str, uid: str) -> float:
        pod = self._mine(name, uid)
        return pod["metadata"].get("deletionGracePeriodSeconds") or 0.0 if pod is not None else 0.0

    def node_answers(self, agent: SimAgent, answers: bool) -> None:
        """Or falls silent: the agent isn't heard either, and the node controller tells of the pod."""
        agent.cut_off = not answers
        if answers and not agent.alive:
            return  # the kubelet tells of its end
        conditions = [
            {"type": "ContainersReady", "status": "True"},
            {"type": "Ready", "status": "True" if answers else "Unknown"},
        ]
        pod = self._mine(agent.pod, agent.identity.pod_uid)
        if pod is not None and pod["status"].get("phase") == "Running":
            known = [c for c in pod["status"].get("conditions") or [] if c["type"] not in ("ContainersReady", "Ready")]
            self._update(agent.pod, agent.identity.pod_uid, conditions=[*known, *conditions])

    def node_is_gone(self, pod: Object) -> None:
        """Its machine does not exist any more: nobody tells of the pod until the control plane removes it."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        self._without_node.add(uid)
        agent = self.agents.get(uid)
        if agent is not None and agent.alive:
            agent.die(137, "its node is gone")

        def collect() -> None:
            found = self._mine(name, uid)
            if found is not None:
                others = [c for c in found["status"].get("conditions") or [] if c["type"] != "DisruptionTarget"]
                gone = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
                self._update(name, uid, phase="Failed", conditions=[*others, gone])
                self._store.delete(POD, self._world.namespace, name, uid=uid, grace_s=0)

        self._world.later(self._chance.uniform(*COLLECTED_S), collect)

    def _is_unheard(self, uid: str) -> bool:
        """Whether what runs on the pod's node can't be heard, if there is a node at all."""
        agent = self.agents.get(uid)
        return uid in self._without_node or (agent is not None and agent.cut_off)

    async def _kill_late(self, uid: str) -> None:
        """The object was removed by force: its processes live on for a while, longer if their node is cut off."""
        await asyncio.sleep(self._chance.choice((0.05, 0.3, 3.0)))
        agent = self.agents.get(uid)
        while agent is not None and agent.alive and agent.cut_off:
            await asyncio.sleep(1.0)
        if agent is not None:
            agent.die(137, "its pod was removed", told=True)

    async def _tell_end(self, agent: SimAgent, exit_code: int, message: str) -> None:
        await asyncio.sleep(self._chance.uniform(0.01, 0.3))
        while self._is_unheard(agent.identity.pod_uid):
            if self._mine(agent.pod, agent.identity.pod_uid) is None:
                return
            await asyncio.sleep(1.0)  # the kubelet reaches nobody either
        state = {
            "terminated": {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed", "message": message}
        }
        self._update(
            agent.pod,
            agent.identity.pod_uid,
            phase="Failed" if exit_code else "Succeeded",
            containerStatuses=[{"name": "trainer", "state": state}],
        )

    def _mine(self, name: str, uid: str) -> Object | None:
        try:
            pod = self._store.get(POD, self._world.namespace, name)
        except NotFound:
            return None
        return pod if pod["metadata"]["uid"] == uid else None

    def _update(self, name: str, uid: str, **status: object) -> None:
        pod = self._mine(name, uid)
        if pod is not None:
            self._store.update_status(POD, {**pod, "status": {**pod["status"], **status}})
