"""The position of a run in its data: what a checkpoint says about it, and whether a run can continue from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trainmaster.contract.sample_ranges import merged
from trainmaster.data.source import Source
from trainmaster.errors import DataError

_DECIDED_BY = {
    "samples": "model.options.context",
    "shard": "the size of a shard (data.options)",
    "seed": "training.seed",
}
"""What a job sets to decide the order of the same data, by what a checkpoint keeps of the order."""


def write(source: Source, consumed: int) -> dict[str, Any]:
    """Return the position after `consumed` samples, as a checkpoint holds it."""
    return {
        "kind": source.kind,
        "version": source.version,
        "consumed": consumed,
        "skipped": [list(skipped) for skipped in source.skips.ranges],
        "fingerprint": source.fingerprint,
        "source": _order(source),
    }


def read(
    source: Source,
    cursor: Mapping[str, Any],
    checkpoint: str,
    say: Callable[[str, str], None] = lambda reason, message: None,
    asked: Iterable[Sequence[int]] = (),
) -> int:
    """Return the number of samples consumed by the checkpoint. Raises DataError if they were samples of other data.

    `say(reason, message)` reports an event if they were samples of the same data in another order. `asked` are the
    samples that the job is to leave out, as positions in the order.
    """
    if not cursor:
        return 0  # weights from elsewhere, which have seen none of our data
    for key, now in (("kind", source.kind), ("version", source.version)):
        if cursor.get(key) != now:
            raise DataError(f"{checkpoint} was made with data {key} {cursor.get(key)!r}, now it is {now!r}")
    if cursor.get("fingerprint") != source.fingerprint:
        raise DataError(
            f"the data has changed since {checkpoint} was made: its order can't be continued. "
            f"Restore the data, or start a new run from these weights in another folder"
        )
    order, before = _order(source), cursor.get("source") or {}
    changed = [name for name in order if before.get(name, order[name]) != order[name]]
    if changed:
        ranges = merged([*cursor.get("skipped", []), *asked])
        # Positions keep their numbers: by these the operator knows which checkpoints were made with them.
        others = (
            f". Samples to skip are positions in this order, so the {sum(end - first for first, end in ranges)} that "
            f"diverged are not skipped any more, and others are"
            if ranges
            else ""
        )
        say(
            "DataOrderChanged",
            f"{_DECIDED_BY[changed[0]]} has changed since {checkpoint} was made, and with it the order of the samples: "
            f"until the end of this epoch, some samples are seen again and others are left out{others}",
        )
    return int(cursor["consumed"])


def _order(source: Source) -> dict[str, int]:
    """Return what decides the order of the samples of the same data."""
    order = source.order
    return {"samples": order.samples, "shard": min(order.shard, order.samples), "seed": order.seed}
