"""Where a run stands in its data: what a checkpoint says of it, and whether a run can go on from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.data.source import Source
from trainmaster.errors import DataError


def write(source: Source, consumed: int) -> dict[str, Any]:
    """What a checkpoint says, after `consumed` samples."""
    return {
        "kind": source.kind,
        "version": source.version,
        "consumed": consumed,
        "skipped": [list(skipped) for skipped in source.skips.ranges],
        "fingerprint": source.fingerprint,
        "source": {},
    }


def read(source: Source, cursor: Mapping[str, Any], checkpoint: str) -> int:
    """Samples consumed by the checkpoint. Raises DataError if they were samples of other data."""
    if not cursor:
        return 0  # weights from elsewhere, which have seen none of our data
    for key, now in (("kind", source.kind), ("version", source.version)):
        if cursor.get(key) != now:
            raise DataError(f"{checkpoint} was made with data {key} {cursor.get(key)!r}, now it is {now!r}")
    if cursor.get("fingerprint") != source.fingerprint:
        raise DataError(
            f"the data has changed since {checkpoint} was made: its order can't be continued. "
            f"Restore the data, or start anew from these weights in another folder"
        )
    return int(cursor["consumed"])
