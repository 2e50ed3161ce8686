"""What the pods of one job have used in total. The counters never decrease while this leader leads, because they
include pods that have ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from trainmaster.contract.wire import Report, Usage

_NOTHING = Usage()


N = TypeVar("N", int, float)


@dataclass(frozen=True)
class JobUsage:
    """What the pods of a job use. A field is None if no agent of the job reports it."""

    usage: Usage = _NOTHING
    mfu: float | None = None  # The mean over the ranks that report it.
    save_s: float | None = None  # Seconds from the copy in memory to the manifest for the newest checkpoint.


class UsageSum:
    """The sum over the pods of a job. Call `take` for each report and `keep` for the pods that the job still has."""

    def __init__(self) -> None:
        self._of_pods: dict[str, Usage] = {}  # The newest usage of each pod.
        self._ended = _NOTHING
        self._save_s: float | None = None

    def take(self, pod_uid: str, report: Report) -> None:
        """Add the usage in a report."""
        self._save_s = next((r.seconds for r in report.inventory if r.seconds > 0 and not r.error), self._save_s)
        if report.usage is None:
            return
        before = self._of_pods.get(pod_uid)
        if before is not None and (report.usage.cpu_s or 0.0) < (before.cpu_s or 0.0):
            self._ended = _added(self._ended, before)  # Another agent has started in this pod.
        self._of_pods[pod_uid] = report.usage

    def keep(self, pod_uids: Collection[str]) -> None:
        """Count pods that are not in `pod_uids` as ended."""
        for uid in [uid for uid in self._of_pods if uid not in pod_uids]:
            self._ended = _added(self._ended, self._of_pods.pop(uid))

    def total(self, running: Iterable[Report]) -> JobUsage:
        """Return the counters of all pods that ever existed, and the accelerators of those that exist now.
        `running`: the reports of the present round's agents."""
        total, pods = self._ended, list(self._of_pods.values())
        for usage in pods:
            total = _added(total, usage)
        busy = [usage.accelerator_ratio for usage in pods if usage.accelerator_ratio is not None]
        taken = [usage.accelerator_bytes for usage in pods if usage.accelerator_bytes is not None]
        mfu = [rank.mfu for report in running for rank in report.ranks if rank.mfu > 0]
        usage = replace(
            total,
            accelerator_ratio=sum(busy) / len(busy) if busy else None,
            accelerator_bytes=sum(taken) if taken else None,
        )
        return JobUsage(usage, sum(mfu) / len(mfu) if mfu else None, self._save_s)


def _added(one: Usage, other: Usage) -> Usage:
    """Return the sums of the counters. Gauges are left out, because their sum means nothing."""
    return Usage(
        _plus(one.cpu_s, other.cpu_s),
        _plus(one.received_bytes, other.received_bytes),
        _plus(one.sent_bytes, other.sent_bytes),
    )


def _plus(one: N | None, other: N | None) -> N | None:
    return other if one is None else one if other is None else one + other
