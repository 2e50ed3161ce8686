"""Which ranks hold the same shard of the model: a name of what a rank holds, equal on all of its replicas.

So one rank's save in memory will do for another one with the same name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from trainmaster.checkpoint.state import capture
from trainmaster.checkpoint.state.island_names import common_name, island_of
from trainmaster.checkpoint.state.save_shares import local_pieces


def identify(
    objects: Mapping[str, Any],
    modules: Mapping[str, nn.Module],
    sharded: Mapping[str, Any],
    others: Mapping[str, Any],
    rank: int,
) -> str:
    """Return the identity of what `rank` holds: 16 hexadecimal digits, from the names and shapes of its tensors.

    Where there are islands, "<identity>+<island>": in need another island's will do. `modules`, `sharded` and `others`:
    those of `objects` that are modules, that have shards of their own, and that are neither module nor optimizer.
    """
    snapshot = capture.Snapshot()
    for name, module in modules.items():
        capture.capture_module(snapshot, name, module)
    for name, thing in sharded.items():
        snapshot.tensors.update(capture.capture_shards(name, thing))
    held = sorted(
        (common_name(piece.key), list(piece.data.shape))
        for n, t in snapshot.tensors.items()
        for piece in local_pieces(n, t)
    )
    own = [rank] if any(not capture.is_shared(thing) for thing in others.values()) else []
    island = max((island_of(name) for name in objects), default="")
    return hashlib.sha256(json.dumps([held, own]).encode()).hexdigest()[:16] + (island and f"+{island}")


def of_any_island(shard: str) -> str:
    """Return the name of a shard (see `LocalState.shard`) without its island."""
    return shard.partition("+")[0]
