"""The position of a run in its data: what a checkpoint says about it, and whether a run can continue from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.data.source import Source
from trainmaster.errors import DataError


def write(source: Source, consumed: int) -> dict[str, Any]:
    """Return the position after `consumed` samples, as a checkpoint holds it."""
    return {
        "kind": source.kind,
        "version": source.version,
        "consumed": consumed,
        "skipped": [list(skipped) for skipped in source.skips.ranges],
        "fingerprint": source.fingerprint,
        "source": {},
    }


def read(source: Source, cursor: Mapping[str, Any], checkpoint: str) -> int:
    """Return the number of samples consumed by the checkpoint. Raises DataError if they were samples of other data."""
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
    return int(cursor["consumed"])
