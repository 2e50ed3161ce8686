"""Staged shards for tests of the upload, made without torch."""

from __future__ import annotations

import json
import os
import struct
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainmaster.checkpoint.files.upload import upload
from trainmaster.contract.wire.checkpoint_format import directory_name, shard_name


def shard_bytes(step: int, rank: int, world_size: int, **common: Any) -> bytes:
    """Rank's row of a tensor w[world_size, 2] of float32, whose numbers tell of step and rank."""
    data = struct.pack("<2f", step, rank)
    key = f"w@{rank},0"
    header = {
        key: {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
        "__metadata__": {
            "chunks": json.dumps({key: ["w", [world_size, 2], [rank, 0]]}),
            "values": json.dumps({"lr": 0.5} if rank == 0 else {}),
            "common": json.dumps({"mesh": {"dpShard": world_size}, "data": {"consumed": step * 8}, **common}),
        },
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


@contextmanager
def memory_file(data: bytes):
    fd = os.memfd_create("shard")
    os.write(fd, data)
    yield fd
    os.close(fd)


def put(
    root: Path | str,
    step: int,
    round: int,
    rank: int = 0,
    world_size: int = 1,
    keep: int = 0,
    storage: Any = None,
    tried_again: bool = False,
    **common: Any,
):
    """Upload one rank's shard; the result of `upload`."""
    data = shard_bytes(step, rank, world_size, **common)
    message = {
        "step": step,
        "round": round,
        "rank": rank,
        "world_size": world_size,
        "storage": str(root),
        "directory": directory_name(step, round),
        "file": shard_name(rank),
        "size": len(data),
        "keep": keep,
    }
    with memory_file(data) as fd:
        return upload(message, fd, storage, tried_again=lambda: tried_again)
