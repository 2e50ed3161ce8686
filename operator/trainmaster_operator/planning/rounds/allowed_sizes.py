"""How many pods a job may have: sizes that the parallelism and the batch allow, and sizes that the next round may
have."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache

from trainmaster.contract.config import (
    BatchConfig,
    ParallelismConfig,
    pod_counts_that_may_share,
    share_of_each_rank,
)
from trainmaster_operator.planning.facts.change import normal, warning
from trainmaster_operator.planning.facts.computed_once import once
from trainmaster_operator.planning.facts.counted_nouns import counted
from trainmaster_operator.planning.facts.job_state import JobPhase, WorkersStatus
from trainmaster_operator.planning.facts.observation import JobSpec, PlannedEvent
from trainmaster_operator.planning.facts.timestamps import rfc3339, since
from trainmaster_operator.planning.facts.view import View

TOLD = 64
"""Maximum number of legal sizes in the status."""

REMEMBERED = 4096
"""Maximum number of jobs whose legal sizes are cached."""

MOST = 100_000
"""Maximum number of pods of a job, whatever its batch."""


def legal(spec: JobSpec) -> Sequence[int]:
    """Return the numbers of pods from workers.min to workers.max, ascending, whose ranks can share the model and the
    batch."""
    known = _known.get(id(spec))
    if known is None or known[0] is not spec:
        if len(_known) >= REMEMBERED:
            _known.clear()
        known = _known[id(spec)] = (spec, _all_legal(spec))
    return known[1]


_known: dict[int, tuple[JobSpec, Sequence[int]]] = {}
"""The legal sizes by the identity of a spec, which never changes. Every pass over a job needs them, and hashing a
spec takes longer."""


def _all_legal(spec: JobSpec) -> Sequence[int]:
    workers, training = spec.workers, spec.training
    if training is None:
        if not spec.elastic:
            return (workers.replicas,)
        # It stays a range: a job may have 100,000 sizes, and those of thousands of jobs are remembered.
        return range(workers.min or 1, (workers.max or workers.replicas) + 1)
    high = workers.max or (workers.replicas if training.batch.scaling is not None else MOST)
    return _legal(training.parallelism, training.batch, workers.ranksPerPod, workers.min or 1, high)


def wished(spec: JobSpec) -> int:
    """Return workers.replicas, rounded down to a legal size."""
    replicas = spec.workers.replicas
    return largest(legal(spec), replicas) or replicas if spec.elastic else replicas


def explain_rounding(spec: JobSpec) -> str:
    """Return what people read if workers.replicas is no legal size."""
    asked = spec.workers.replicas
    sizes = legal(spec)
    larger = f", or {sizes[at]}" if (at := bisect_right(sizes, asked)) < len(sizes) else ""
    return f"the parallelism and the batch do not allow {counted(asked, 'pod')}; they allow {wished(spec)}{larger}"


@once
def wanted(view: View) -> int:
    """Return the size that this job is to have. Without a place for checkpoints a running job of framework
    Trainmaster keeps its size, because another round would begin at step 0."""
    if view.status.round and not view.scripted and view.spec.checkpoint.folder is None:
        return len(view.members)
    return wished(view.spec)


def slots_for(view: View, size: int) -> int:
    """Return the number of slots for a job of this size. The slots of the wanted size stay, because a smaller job
    grows again."""
    return max(size, wanted(view)) + view.spec.workers.spares


def openable(view: View, forms_for_s: float) -> list[int]:
    """Return the sizes that the next round may have, the best first. `forms_for_s`: seconds for which it has waited
    for pods."""
    size, wish = len(view.members), wanted(view)
    found = [size]
    if wish < size:
        found = [wish]
    elif wish > size and not cools_down(view):
        sizes = legal(view.spec)
        found = [*reversed(sizes[bisect_right(sizes, size) : bisect_right(sizes, wish)]), size]
    if view.spec.workers.min is not None and forms_for_s >= view.spec.recovery.elastic.waitSeconds:
        found += reversed(below(view, found[-1]))
    return found


def fewest(view: View) -> int:
    """Return the smallest of the sizes that the next round may have once it has waited for pods."""
    least = min(len(view.members), wanted(view))
    smaller = below(view, least)
    return smaller[0] if smaller else least


def below(view: View, size: int) -> Sequence[int]:
    """Return the legal sizes below `size` to which a job may shrink by itself, ascending."""
    spec = view.spec
    if spec.workers.min is None or wanted(view) != wished(spec):
        return ()
    sizes = legal(spec)
    return sizes[: bisect_left(sizes, size)]


def largest(sizes: Sequence[int], limit: int) -> int | None:
    """Return the largest of `sizes`, which are ascending, that is not above `limit`; None if there is none. A job may
    have 100,000 sizes, and each pass asks."""
    at = bisect_right(sizes, limit)
    return sizes[at - 1] if at else None


def cools_down(view: View) -> bool:
    """Return whether a job that shrank must still keep its size."""
    return cooldown_s(view) > 0


def cooldown_s(view: View) -> float:
    """Return the seconds for which a job that shrank keeps its size, whatever pods are there again."""
    shrunk = view.status.workers.shrunkAt
    return max(0.0, view.spec.recovery.elastic.cooldownSeconds - since(shrunk, view.now)) if shrunk else 0.0


def sized(view: View, size: int) -> WorkersStatus:
    """Return the workers status for a world of `size` pods that opens now."""
    workers = view.status.workers
    wish = wanted(view)
    shrunk = workers.shrunkAt if size < wish else ""
    if size < min(wish, workers.replicas):
        shrunk = rfc3339(view.now)
    if (size, shrunk) == (workers.replicas, workers.shrunkAt):
        return workers
    return workers.model_copy(update={"replicas": size, "resizedAt": rfc3339(view.now), "shrunkAt": shrunk})


def report_resize(view: View, size: int) -> tuple[PlannedEvent, ...]:
    """Return the event that reports a round of `size` pods; () if the size does not change."""
    before = view.status.workers.replicas
    if size == before or view.status.phase is JobPhase.PENDING:
        return ()
    if size > before:
        return (normal("Grown", f"from {before} to {counted(size, 'pod')}"),)
    if size >= wanted(view):
        return (normal("Shrunk", f"from {before} to {counted(size, 'pod')}"),)
    return (warning("Shrunk", f"from {before} to {counted(size, 'pod')}, since the others are missing"),)


def waits_s(view: View) -> tuple[float, ...]:
    """Return the times in seconds after which a forming round may take another size."""
    elastic = view.spec.recovery.elastic
    return () if view.spec.workers.min is None else (elastic.waitSeconds,)


@lru_cache(maxsize=1024)
def _legal(
    parallelism: ParallelismConfig, batch: BatchConfig, ranks_per_pod: int, low: int, high: int
) -> tuple[int, ...]:
    possible = pod_counts_that_may_share(parallelism, batch, ranks_per_pod, low, high)
    return tuple(n for n in possible if _fits(parallelism, batch, n * ranks_per_pod))


def _fits(parallelism: ParallelismConfig, batch: BatchConfig, world_size: int) -> bool:
    try:
        share_of_each_rank(parallelism, batch, world_size)
    except ValueError:
        return False
    return True
