"""A taint on suspect nodes, so that no pod is placed there while others can be used, and so that autoscalers know it.

Pods that avoid a node by affinity name it, and Karpenter adds no node for such pods. A taint is on the node instead. It
needs a right to nodes, which the chart grants with `nodes.taint`; without this right, and if tainting fails, the
affinity of the pods must be enough.

The taint stays while the node is suspect, and for a few minutes at least. Other taints are not changed: each write is
bound to the version of the node that was read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from trainmaster_operator.cluster.nodes_port import NodeRecord, Nodes
from trainmaster_operator.cluster.port import ApiError, Conflict, Forbidden, NotFound, Object
from trainmaster_operator.planning.facts.node_suspicion import EXCLUDED_FROM
from trainmaster_operator.runtime.clock import Clock
from trainmaster_operator.runtime.leader.lease import Leadership

log = logging.getLogger(__name__)

KEY = "status-taint.cluster-autoscaler.kubernetes.io/trainmaster-suspect"
"""The prefix tells the cluster autoscaler that the taint is about the state of this node: it does not count the node
as a place for pods, and does not expect the taint on nodes that it adds. Karpenter needs no such hint."""
TAINT: Object = {"key": KEY, "value": "true", "effect": "NoSchedule"}

# Minimum number of seconds since a job last avoided the node: as long as a cluster takes to notice a dead one.
STAYS_S = 300.0
LOOK_S = 60.0
ASK_AGAIN_S = 600.0  # Seconds after the right was found to be missing.
CONFLICTS = 5  # In succession: kubelets and controllers write to nodes too.

MISSING = (
    "this operator may not taint nodes, so pods keep away from suspect nodes by affinity until one of them finds no "
    "place; the chart's value nodes.taint grants the right"
)


class NodeTaints:
    """The taints of suspect nodes. `nodes`: None if the operator does not have the right. `score`: returns how
    suspect a node is. `say`: called once if the right is missing."""

    def __init__(
        self,
        nodes: Nodes | None,
        clock: Clock,
        leader: Leadership,
        score: Callable[[str], float],
        say: Callable[[str], None] = log.warning,
    ) -> None:
        self._nodes, self._clock, self._leader, self._score, self._say = nodes, clock, leader, score, say
        self._said = False
        self._asked_again_at = float("-inf")  # Monotonic.
        # The nodes with our taint, and the earliest time at which it may be removed.
        self._until: dict[str, float] = {}

    async def keep_off(self, names: Sequence[str]) -> list[str]:
        """Taint these nodes. Return those that could not be tainted. Raise NotLeading."""
        if not names or not self._may():
            return list(names)
        left = []
        for name in names:
            try:
                await self._change(name, _with_ours)
                self._until[name] = self._clock.monotonic() + STAYS_S
            except NotFound:
                continue  # The node is gone, so nothing will be placed there.
            except Forbidden as error:
                self._miss(str(error))
                return list(names)
            except ApiError as error:
                log.warning("node %s was not tainted: %s", name, error)
                left.append(name)
        return left

    @property
    def tainted(self) -> tuple[str, ...]:
        """The nodes that have our taint, as far as this leader knows."""
        return tuple(sorted(self._until))

    async def allow(self, names: Sequence[str]) -> None:
        """Remove the taint from these nodes because a job needs them. Raise NotLeading."""
        for name in [name for name in names if name in self._until]:
            try:
                await self._change(name, _without_ours)
            except NotFound:
                pass
            except ApiError as error:
                log.warning("node %s keeps its taint for now: %s", name, error)
                continue
            self._until.pop(name, None)  # Another job, or `_clear`, may have freed the node during this call.

    async def run(self) -> None:
        """Remove the taint from nodes that are no longer suspect, while this operator leads."""
        known = False
        while True:
            if self._may():
                try:
                    known = known or await self._learn()
                    await self._clear()
                except Forbidden as error:
                    self._miss(str(error))
                except ApiError as error:
                    log.warning("taints of nodes were not looked at: %s", error)
            await asyncio.sleep(LOOK_S)

    async def _learn(self) -> bool:
        """Find the taints of earlier leaders. The minimum time for which they must stay is not known, so it begins
        now."""
        assert self._nodes is not None
        for node in await self._nodes.list():
            if any(map(_is_ours, node.taints)):
                self._until.setdefault(node.name, self._clock.monotonic() + STAYS_S)
        return True

    async def _clear(self) -> None:
        now = self._clock.monotonic()
        for name in [n for n, until in self._until.items() if until <= now and self._score(n) < EXCLUDED_FROM]:
            try:
                await self._change(name, _without_ours)
                log.info("node %s is suspect no more: its taint is removed", name)
            except NotFound:
                pass
            except Forbidden:
                raise
            except ApiError as error:  # The other nodes must not wait for one that cannot be written.
                log.warning("node %s keeps its taint for now: %s", name, error)
                continue
            if self._until.get(name, now) <= now:  # A job may have freed the node during this call, or tainted it.
                self._until.pop(name, None)

    async def _change(self, name: str, change: Callable[[NodeRecord], tuple[Object, ...]]) -> None:
        assert self._nodes is not None
        self._leader.check()
        await _change(self._nodes, name, change)

    def _may(self) -> bool:
        if self._nodes is None:
            self._miss("")
            return False
        return self._clock.monotonic() >= self._asked_again_at

    def _miss(self, words: str) -> None:
        self._asked_again_at = self._clock.monotonic() + ASK_AGAIN_S
        if not self._said:
            self._said = True
            self._say(f"{MISSING}: {words}" if words else MISSING)


async def remove_all(nodes: Nodes) -> tuple[list[str], list[str]]:
    """Remove our taint from all nodes. Return the names of those that had it, and of those that still have it."""
    had, left = [], []
    for node in await nodes.list():
        if any(map(_is_ours, node.taints)):
            had.append(node.name)
            try:
                await _change(nodes, node.name, _without_ours)
            except NotFound:
                continue
            except ApiError as error:
                log.error("node %s keeps the taint %s: %s", node.name, KEY, error)
                left.append(node.name)
    return had, left


async def _change(nodes: Nodes, name: str, change: Callable[[NodeRecord], tuple[Object, ...]]) -> None:
    """Change the taints of a node, and try again after a conflict. Raise ApiError."""
    for attempt in range(CONFLICTS):
        node = await nodes.get(name)
        wanted = change(node)
        if wanted == node.taints:
            return
        try:
            await nodes.set_taints(node, wanted)
        except Conflict:
            if attempt == CONFLICTS - 1:
                raise
        else:
            return


def _is_ours(taint: Object) -> bool:
    return taint.get("key") == KEY


def _with_ours(node: NodeRecord) -> tuple[Object, ...]:
    return node.taints if any(map(_is_ours, node.taints)) else (*node.taints, TAINT)


def _without_ours(node: NodeRecord) -> tuple[Object, ...]:
    return tuple(taint for taint in node.taints if not _is_ours(taint))
