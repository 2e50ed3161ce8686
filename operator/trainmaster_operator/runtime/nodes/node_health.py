"""Which nodes are suspect, according to all jobs of this operator: one ConfigMap in its namespace, which only the
leader writes.

The operator learns from the last failure in a job's status whenever it processes the job, and each reason has an
identifier. So nothing counts twice, and what one leader learned and could not write, the next leader learns again. The
ConfigMap is only a hint for the placement of new pods: if it cannot be read or written, everything else continues.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

from trainmaster_operator.cluster.port import CONFIG_MAP, ApiError, Cluster, NotFound
from trainmaster_operator.planning.facts.node_suspicion import (
    FORGOTTEN_BELOW,
    HALF_LIFE_S,
    Mark,
    Suspicion,
    score,
    weight,
)
from trainmaster_operator.planning.facts.observation import PodRecord
from trainmaster_operator.planning.facts.timestamps import rfc3339
from trainmaster_operator.planning.placement import avoided_nodes
from trainmaster_operator.runtime.cache.cache_records import JobRecord
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.clock import Clock
from trainmaster_operator.runtime.leader.lease import Leadership

log = logging.getLogger(__name__)

NAME = "trainmaster-suspicion"
KEY = "nodes.json"
MARKS = 16  # Maximum number of reasons per node; the newest are kept.
NODES = 256  # Maximum number of nodes; the most suspect are kept.
COUNT_EVERY_S = 30.0
WRITE_AFTER_S = 5.0  # Seconds in which failures of many jobs are collected into one write.
RETRY_S = 30.0


class Ledger:
    """The reasons to suspect nodes. `node_names`: the node names of all pods that are known here."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        leader: Leadership,
        namespace: str,
        node_names: Callable[[], Iterable[str]],
        half_life_s: float = HALF_LIFE_S,
    ) -> None:
        self._cluster, self._clock, self._leader, self._namespace = cluster, clock, leader, namespace
        self._node_names = node_names
        self._half_life_s = half_life_s
        self._marks: dict[str, list[Mark]] = {}
        self._learned: dict[JobKey, str] = {}  # The last failure of each job that was learned.
        self._changed = asyncio.Event()
        self._known = Suspicion()
        self._counted_at = float("-inf")

    def suspicion(self) -> Suspicion:
        """Return the reasons of all jobs, for the planner."""
        now = self._clock.monotonic()
        if now - self._counted_at >= COUNT_EVERY_S:
            self._counted_at = now
            self._refresh(len({*filter(None, self._node_names())} | self._marks.keys()))
        return self._known

    def score(self, node: str) -> float:
        """Return how suspect a node is now."""
        return score(self._marks.get(node, ()), self._clock.now(), self._half_life_s)

    def learn(self, record: JobRecord, pods: Iterable[PodRecord]) -> None:
        """Learn what a job's status, and pods that a node rejected, say about nodes."""
        now = self._clock.now()
        reasons = [avoided_nodes.of_rejection(record.uid, pod, now) for pod in pods if pod.rejected]
        failure = record.status.lastFailure
        if failure is not None and self._learned.get(record.key) != (which := f"{record.uid}/{failure.time}"):
            self._learned[record.key] = which
            reasons.append(avoided_nodes.of_failure(record.uid, record.status))
        self._add(reason for reason in reasons if reason is not None)

    def forget(self, key: JobKey) -> None:
        """Forget a job that is gone. What it said about nodes stays."""
        self._learned.pop(key, None)

    async def run(self) -> None:
        """Read the ConfigMap, then write it after each change, until cancelled. It runs while this operator leads."""
        self._learned.clear()
        await self._load()
        while True:
            await self._changed.wait()
            await asyncio.sleep(WRITE_AFTER_S)
            self._changed.clear()
            try:
                await self._write()
            except ApiError as error:
                log.warning("suspect nodes were not written down: %s", error)
                self._changed.set()
                await asyncio.sleep(max(RETRY_S, error.retry_after_s))

    def _add(self, reasons: Iterable[tuple[str, Mark]]) -> None:
        added = False
        for node, mark in reasons:
            marks = self._marks.get(node, [])
            if any(known.id == mark.id for known in marks) or self._forgotten(mark):
                continue
            newest = self._marks[node] = sorted([*marks, mark], key=lambda one: (one.at, one.id))[-MARKS:]
            added = added or mark in newest
        if added:
            self._refresh(self._known.nodes)  # Once for all of them, because it looks at every reason of every node.
            self._changed.set()

    def _forgotten(self, mark: Mark) -> bool:
        return weight(mark, self._clock.now(), self._half_life_s) < FORGOTTEN_BELOW

    def _refresh(self, count: int) -> None:
        kept = {node: [m for m in marks if not self._forgotten(m)] for node, marks in self._marks.items()}
        self._marks = {node: marks for node, marks in kept.items() if marks}
        # A copy, because observations are values.
        self._known = Suspicion(dict(self._marks), count, self._half_life_s)

    async def _load(self) -> None:
        while True:
            try:
                found = await self._cluster.get(CONFIG_MAP, self._namespace, NAME)
            except NotFound:
                return
            except ApiError as error:
                log.warning("suspect nodes could not be read: %s", error)
                await asyncio.sleep(max(RETRY_S, error.retry_after_s))
                continue
            written = _read((found.get("data") or {}).get(KEY, ""))
            known = {(node, mark.id) for node, mark in written}
            # A new leader looks at all jobs at once, so it may have learned more than this before the answer came.
            news = any((node, mark.id) not in known for node, marks in self._marks.items() for mark in marks)
            self._add(written)
            if not news:
                self._changed.clear()
            return

    async def _write(self) -> None:
        now = self._clock.now()
        scores = {node: score(marks, now, self._half_life_s) for node, marks in self._marks.items()}
        worst = sorted(scores, key=lambda node: (-scores[node], node))[:NODES]
        told = {node: _summarise_marks(self._marks[node], scores[node]) for node in worst}
        self._leader.check()
        await self._cluster.apply(
            CONFIG_MAP,
            {
                "apiVersion": "v1",
                "kind": CONFIG_MAP,
                "metadata": {
                    "name": NAME,
                    "namespace": self._namespace,
                    "labels": {"app.kubernetes.io/managed-by": "trainmaster"},
                },
                "data": {KEY: json.dumps(told, separators=(",", ":"))},
            },
        )


def _summarise_marks(marks: list[Mark], score: float) -> dict[str, Any]:
    """Return what is stored about a node: score, time and causes for people, and the reasons for the next leader."""
    causes: dict[str, int] = {}
    for mark in marks:
        causes[mark.cause] = causes.get(mark.cause, 0) + 1
    return {
        "score": round(score, 2),
        "time": rfc3339(marks[-1].at),
        "causes": causes,
        "marks": [[mark.id, mark.job, mark.cause, round(mark.at, 3)] for mark in marks],
    }


def _read(text: str) -> list[tuple[str, Mark]]:
    """Return what an earlier leader wrote; [] if somebody has edited the text so that it is invalid."""
    try:
        return [
            (str(node), Mark(str(id), str(job), str(cause), float(at)))
            for node, told in json.loads(text or "{}").items()
            for id, job, cause, at in told["marks"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s holds no list of suspect nodes: %s", NAME, error)
        return []
