"""A cluster that grows while a job waits: nodes with one place each, a scheduler, and a node autoscaler by model.

The autoscaler is asked for pods that the scheduler has no place for. It behaves as Karpenter and the cluster autoscaler
do: it takes some seconds to notice, tells by an Event which pods a node is on its way for, and the node comes minutes
later, or never. It ignores pods whose node affinity names nodes. Another job may hold places and wait for ours, until
one of the two lets go. A webhook may gate pods for a while.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainmaster_operator.cluster.nodes_port import NodeRecord
from trainmaster_operator.cluster.port import EVENT, POD, Conflict, Forbidden, NotFound, Object
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.placement.gang_release import FRESH_S
from trainmaster_operator.planning.placement.scheduling_gates import GATED

if TYPE_CHECKING:
    from simulation.virtual.virtual_world import World

LOOK_S = 10.0  # of the autoscaler: it collects pods for so long
SCHEDULER_LOOK_S = 2.0
SEEN_AFTER_S = 30.0  # by then an operator has seen a pod's new place, if it misses events too
TOLD_AFTER_S = 90.0  # by then an operator that lives has read an Event or a list of nodes
RIVAL_S = (60.0, 600.0)  # how long the other job trains once it has all its places

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class Growth:
    """How the cluster of a workload grows. Times are seconds."""

    nodes: int  # that are there from the start
    late_s: tuple[float, float] = (30.0, 500.0)  # how long an ordered node takes
    fails: float = 0.0  # the share of orders that bring nothing
    rival: int = 0  # places of these nodes that another job holds, and it waits for the rest
    release_s: int = 900  # scheduling.releaseSeconds
    gated_s: float = 0.0  # how long each pod is gated
    pending_s: int | None = None  # pendingDeadlineSeconds
    may_taint: bool = False  # the operator's rights to nodes
    may_list: bool = False


@dataclass
class _Order:
    pods: list[str]  # uids
    at: float
    comes: bool
    over: bool = False


@dataclass
class _Node:
    name: str
    created_at: str
    version: int = 1
    taints: tuple[Object, ...] = ()
    ready: bool = True
    rival: bool = False  # its place is another job's


@dataclass
class GrowingCluster:
    """The nodes of a simulated cluster, its scheduler and its autoscaler; and what the operator may do with nodes."""

    world: World
    growth: Growth
    nodes: dict[str, _Node] = field(default_factory=dict)
    orders: list[_Order] = field(default_factory=list)
    bound_at: float = float("-inf")  # when a pod last found a place

    def __post_init__(self) -> None:
        self.chance = self.world.chance("growth")
        for number in range(self.growth.nodes):
            self._join().rival = number < self.growth.rival

    def start(self) -> None:
        self.world.spawn(self._scale())
        if self.growth.rival:
            self.world.spawn(self._compete())

    # -- pods

    async def place(self, name: str, uid: str) -> None:
        """Until the pod has a node, or is gone."""
        gate_ends = self.world.clock.monotonic() + self.growth.gated_s
        while (pod := self._pod(name, uid)) is not None and not pod["metadata"].get("deletionTimestamp"):
            if self.world.clock.monotonic() < gate_ends:
                self._tell(pod, GATED, "Scheduling is blocked due to non-empty scheduling gates")
                await asyncio.sleep(gate_ends - self.world.clock.monotonic())
                continue
            if (node := self._free_for(pod)) is not None:
                # An API server writes both at once: nobody may see a place without the time at which it was found.
                self._tell(pod, "", "")
                try:
                    self.world.store.bind(self.world.namespace, name, node.name)
                except (NotFound, Conflict):
                    return
                self.bound_at = self.world.clock.monotonic()
                return
            self._tell(pod, "Unschedulable", f"0/{len(self.nodes)} nodes are available")
            await asyncio.sleep(SCHEDULER_LOOK_S)

    def reclaim(self, node: str) -> None:
        """The cloud takes a node away, and its pods with it."""
        found = self.nodes.pop(node, None)
        if found is None:
            return
        for pod in self.world.pods():
            if pod["spec"].get("nodeName") == node:
                self.world.kubelet.node_is_gone(pod)
        if self.growth.fails == 1.0:  # nobody else would ever bring another one
            self.world.later(self.chance.uniform(*self.growth.late_s), lambda: self._return(found))

    def _return(self, node: _Node) -> None:
        """The same object: the other job may have taken the node's place meanwhile, and gives it back in the end."""
        node.created_at, node.version, node.taints, node.ready = rfc3339(self.world.clock.now()), 1, (), True
        self.nodes[node.name] = node

    # -- nodes, as an operator sees them

    async def list(self) -> list[NodeRecord]:
        return [self._seen(node) for node in self.nodes.values()]

    async def get(self, name: str) -> NodeRecord:
        return self._seen(self._node(name))

    async def set_taints(self, node: NodeRecord, taints: tuple[Object, ...]) -> None:
        if not self.growth.may_taint:
            raise Forbidden("nodes may not be patched")
        known = self._node(node.name)
        if str(known.version) != node.version:
            raise Conflict(f"node {node.name} has changed")
        known.version, known.taints = known.version + 1, taints

    # -- promises

    def given_back(self) -> None:
        """The job gives its places back: never while a pod of it is gated, nor while places appear for it."""
        now = self.world.clock.monotonic()
        fresh_s = min(self.growth.release_s, FRESH_S)
        if SEEN_AFTER_S <= now - self.bound_at < fresh_s - 1.0:
            self.world.violation(f"places are given back {now - self.bound_at:.0f} s after a pod found one")
        for order in self.orders:
            told_s = now - order.at
            if order.comes and not order.over and TOLD_AFTER_S <= told_s < fresh_s - 1.0:
                self.world.violation(f"places are given back while a node comes that was announced {told_s:.0f} s ago")
        if any(_reason(pod) == GATED for pod in self.world.pods()):
            self.world.violation("places are given back while a gate holds back a pod of the job")

    # -- inside

    async def _scale(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            waits = [pod for pod in self.world.pods() if _reason(pod) == "Unschedulable" and not _names_nodes(pod)]
            on_order = {uid for order in self.orders if not order.over for uid in order.pods}
            for pod in waits:
                if pod["metadata"]["uid"] not in on_order and not pod["metadata"].get("deletionTimestamp"):
                    self._order(pod)

    def _order(self, pod: Object) -> None:
        order = _Order(
            [pod["metadata"]["uid"]], self.world.clock.monotonic(), self.chance.random() >= self.growth.fails
        )
        self.orders.append(order)
        number = len(self.orders)
        reason = self.chance.choice(("TriggeredScaleUp", "Nominated"))
        self.world.store.create(
            EVENT,
            {
                "apiVersion": "v1",
                "kind": EVENT,
                "metadata": {"name": f"order-{number}", "namespace": self.world.namespace},
                "involvedObject": {
                    "kind": POD,
                    **{key: pod["metadata"][key] for key in ("namespace", "name", "uid")},
                },
                "type": "Normal",
                "reason": reason,
                "message": f"node {number} is on its way",
                "lastTimestamp": rfc3339(self.world.clock.now()),
            },
        )
        self.world.note(f"a node is ordered for {pod['metadata']['name']}{'' if order.comes else ', in vain'}")
        self.world.spawn(self._deliver(order))

    async def _deliver(self, order: _Order) -> None:
        await asyncio.sleep(self.chance.uniform(*self.growth.late_s))
        order.over = True
        if order.comes:
            self.world.note(f"{self._join().name} joins")

    async def _compete(self) -> None:
        """The other job takes places that ours has given back, trains, and goes."""
        mine = list(self.nodes.values())
        while not all(node.rival for node in mine):
            await asyncio.sleep(1.0)
            taken = {pod["spec"].get("nodeName") for pod in self.world.pods() if not _ended(pod)}
            if not taken & {node.name for node in mine}:
                for node in mine:
                    node.rival = True
        self.world.note("the other job has all its places")
        await asyncio.sleep(self.chance.uniform(*RIVAL_S))
        for node in mine:
            node.rival = False
        self.world.note("the other job is done")

    def _join(self) -> _Node:
        name = f"node-{len(self.nodes) + len(self.orders)}-{self.world.clock.monotonic():.0f}"
        node = self.nodes[name] = _Node(name, rfc3339(self.world.clock.now()))
        return node

    def _free_for(self, pod: Object) -> _Node | None:
        taken = {p["spec"].get("nodeName") for p in self.world.pods() if not _ended(p)}
        excluded = _excluded(pod)
        free = (
            node
            for node in self.nodes.values()
            if not (node.rival or node.taints or node.name in taken or node.name in excluded)
        )
        return next(free, None)

    def _tell(self, pod: Object, reason: str, message: str) -> None:
        """Write the condition PodScheduled; `reason` "": it has a place."""
        if _reason(pod) == reason and reason:
            return
        now = rfc3339(self.world.clock.now())
        condition = {"type": "PodScheduled", "status": "False" if reason else "True", "lastTransitionTime": now}
        if reason:
            condition |= {"reason": reason, "message": message}
        status = pod.get("status") or {}
        others = [c for c in status.get("conditions") or [] if c["type"] != "PodScheduled"]
        self.world.store.update_status(POD, {**pod, "status": {**status, "conditions": [*others, condition]}})

    def _pod(self, name: str, uid: str) -> Object | None:
        try:
            pod = self.world.store.get(POD, self.world.namespace, name)
        except NotFound:
            return None
        return pod if pod["metadata"]["uid"] == uid else None

    def _node(self, name: str) -> _Node:
        if name not in self.nodes:
            raise NotFound(f'nodes "{name}" not found')
        return self.nodes[name]

    @staticmethod
    def _seen(node: _Node) -> NodeRecord:
        return NodeRecord(node.name, str(node.version), node.created_at, node.taints)


def _reason(pod: Object) -> str:
    """Why a pod has no place; "" if it has one, or nobody has looked for one."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((c.get("reason") or "" for c in conditions if c["type"] == "PodScheduled"), "")


def _ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _of_nodes(pod: Object) -> Object:
    found: Object = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return found


def _names_nodes(pod: Object) -> bool:
    """Karpenter ignores such a pod, whether the affinity is required or preferred."""
    affinity = _of_nodes(pod)
    terms = [*((affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [])]
    terms += [each["preference"] for each in affinity.get(_PREFERRED) or []]
    keys = {one["key"] for term in terms for one in term.get("matchExpressions") or []}
    return "kubernetes.io/hostname" in keys or any(term.get("matchFields") for term in terms)


def _excluded(pod: Object) -> set[str]:
    terms = (_of_nodes(pod).get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    return {
        name
        for term in terms
        for one in term.get("matchExpressions") or []
        if one["key"] == "kubernetes.io/hostname" and one["operator"] == "NotIn"
        for name in one["values"]
    }
