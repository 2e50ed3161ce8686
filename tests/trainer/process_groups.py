"""A process group of one process, which leaves that process as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def process_group(rank: int = 0, size: int = 1) -> Iterator[None]:
    """Make a default process group of gloo; with several ranks one of which only `rank` is there, and whose collectives
    do nothing."""
    hook = sys.excepthook  # Each group puts its rank before every line of a traceback, for good.
    if size == 1:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
