"""What the pods of one job have used since this operator began to lead. The counters never decrease while it leads,
because they include pods that have ended."""

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
    """The sum over the pods of a job. Call `take` for each report and `keep` for the pods that the job still has.

    A pod counts from its first report on. Pods that run already when an operator begins to lead report one after the
    other: with their whole past, each of them would look like a burst of usage to Prometheus.
    """

    def __init__(self) -> None:
        self._of_pods: dict[str, Usage] = {}  # The newest usage of each pod, since its agent began.
        self._rest = _NOTHING  # The usage of agents that have ended, minus that before each pod's first report.
        self._save_s: float | None = None

    def take(self, pod_uid: str, report: Report) -> None:
        """Add the usage in a report."""
        self._save_s = next((r.seconds for r in report.inventory if r.seconds > 0 and not r.error), self._save_s)
        if report.usage is None:
            return
        before = self._of_pods.get(pod_uid)
        if before is None:
            self._rest = _combined(self._rest, report.usage, -1)
        elif (report.usage.cpu_s or 0.0) < (before.cpu_s or 0.0):
            self._rest = _combined(self._rest, before, 1)  # Another agent has started in this pod.
        self._of_pods[pod_uid] = report.usage

    def keep(self, pod_uids: Collection[str]) -> None:
        """Count pods that are not in `pod_uids` as ended."""
        for uid in [uid for uid in self._of_pods if uid not in pod_uids]:
            self._rest = _combined(self._rest, self._of_pods.pop(uid), 1)

    def total(self, running: Iterable[Report]) -> JobUsage:
        """Return the counters of all pods that this operator has heard, and the accelerators of those that exist now.
        `running`: the reports of the present round's agents."""
        total, pods = self._rest, list(self._of_pods.values())
        for usage in pods:
            total = _combined(total, usage, 1)
        busy = [usage.accelerator_ratio for usage in pods if usage.accelerator_ratio is not None]
        taken = [usage.accelerator_bytes for usage in pods if usage.accelerator_bytes is not None]
        mfu = [rank.mfu for report in running for rank in report.ranks if rank.mfu > 0]
        usage = replace(
            total,
            # It is rounded, because Prometheus sees a decrease even in the last bit.
            cpu_s=None if total.cpu_s is None else round(total.cpu_s, 3),
            accelerator_ratio=sum(busy) / len(busy) if busy else None,
            accelerator_bytes=sum(taken) if taken else None,
        )
        return JobUsage(usage, sum(mfu) / len(mfu) if mfu else None, self._save_s)


def _combined(one: Usage, other: Usage, sign: int) -> Usage:
    """Return the sums of the counters, with `other` times `sign`. Gauges are left out, because their sum means
    nothing."""
    return Usage(
        _plus(one.cpu_s, other.cpu_s, sign),
        _plus(one.received_bytes, other.received_bytes, sign),
        _plus(one.sent_bytes, other.sent_bytes, sign),
    )


def _plus(one: N | None, other: N | None, sign: int) -> N | None:
    return one if other is None else sign * other if one is None else one + sign * other
