"""The shared-memory record through which an agent sees a rank, and through which it talks back.

One anonymous memory file (memfd) of one page per rank: nothing is left behind when its holders die. The first
half is written by the rank under a sequence lock (odd while writing), the second half by the agent, field by
field. CLOCK_MONOTONIC is the same in all processes of a machine, so times are compared directly.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

MAGIC = 0x544D5052  # "TMPR"
VERSION = 1
SIZE = mmap.PAGESIZE

RESCUES = 2  # bit of Progress.flags: this rank saves its last completed step when its agent asks (channel RESCUE)
IMPORTING = 4  # bit of Progress.flags: the main thread of a script is in an import
OBEYS_STOP = 1  # bit of Progress.flags: this rank reads `stop_at`; others get SIGTERM when a stop binds

_HEAD = struct.Struct("<IIQ")  # magic, version, sequence
_RANK = struct.Struct("<iiiiqqqdqqqqqqqqqqqqqqqqqqqqqqqqqqq")  # grows at its end: what an older rank doesn't write is 0
_RANK_AT = 64
_COLLECTIVE = struct.Struct("<qq")  # written on its own, whenever a rank enters one
_COLLECTIVE_AT = 1024
_CONTROL = struct.Struct("<qiiq")
_CONTROL_AT = 2048


class Phase(IntEnum):
    """What a rank is doing. Limits on silence differ by phase."""

    START = 0  # the process runs, nothing else is known
    RENDEZVOUS = 1
    BUILD = 2  # model, optimizer, data
    LOAD = 3  # restoring a checkpoint
    STEP = 4
    SAVE = 5  # the part of a checkpoint that blocks training
    EVAL = 6
    DRAIN = 7  # finishing: last save, tear-down
    DONE = 8


@dataclass
class Progress:
    """What a rank says. Times: CLOCK_MONOTONIC nanoseconds, 0 = not yet."""

    round: int = 0
    rank: int = -1
    phase: int = 0
    flags: int = 0
    step: int = 0  # host: steps completed as Python sees them
    device_step: int = 0  # steps whose loss is known
    total_steps: int = 0
    loss: float = math.nan  # of `device_step`
    tokens: int = 0  # consumed in this process
    resumed_step: int = -1
    beat_ns: int = 0  # the last sign of life
    started_ns: int = 0
    rendezvous_ns: int = 0
    built_ns: int = 0
    loaded_ns: int = 0
    first_step_ns: int = 0
    rss_bytes: int = 0
    device_bytes: int = 0
    step_ns: int = 0  # a step's wall time, smoothed
    wait_ns: int = 0  # the part of it spent waiting in collectives, smoothed; 0 as well when that isn't known
    # Pauses between two signs of life, by phase: how many, how long typically, the longest (slowly forgotten).
    step_pauses: int = 0
    step_typical_ns: int = 0
    step_longest_ns: int = 0
    save_pauses: int = 0
    save_typical_ns: int = 0
    save_longest_ns: int = 0
    eval_pauses: int = 0
    eval_typical_ns: int = 0
    eval_longest_ns: int = 0
    save_total_ns: int = 0
    eval_total_ns: int = 0
    # Memory: `rss_bytes` and `device_bytes` are what is taken now, these the most so far and what there is.
    rss_peak_bytes: int = 0
    device_peak_bytes: int = 0
    device_limit_bytes: int = 0
    imported_ns: int = 0  # the start and, after it, the time that imports took up to the next milestone
    # The last collective of the whole world that this process has entered. See `ProgressRecord.entered`.
    collectives: int = 0
    collective: int = 0  # an index of COLLECTIVES


COLLECTIVES = (
    *("", "allreduce", "allgather", "reduce_scatter", "broadcast", "barrier", "alltoall"),
    *("reduce", "gather", "scatter"),
)

STACK_SIGNAL = 61
"""A rank that gets this signal writes the stack of its main thread behind its record. A real-time signal: nobody's
program uses it, nor does any C library."""


@dataclass
class Control:
    """What the agent says to the rank."""

    stop_at: int = -1  # save and stop after this step; -1: go on
    stop_bound: int = 0  # 1: every rank of the world has seen stop_at, so it binds
    uploads_pending: int = 0  # of earlier rounds: the resume point is chosen when this is 0
    copied_step: int = 0  # of this round, that a peer has of this rank's state; -1: none yet; 0: no peer keeps any


class ProgressRecord:
    """Maps a record. The agent creates it (`create`), the rank opens the inherited descriptor (`open`)."""

    opened: ClassVar[int] = 0
    """How often `open` was called in this process: whoever watches a script stops writing once the script does."""

    def __init__(self, memory: mmap.mmap, fd: int) -> None:
        self._memory = memory
        self.fd = fd
        magic, version, self._sequence = _HEAD.unpack_from(memory, 0)
        if magic != MAGIC or version != VERSION:
            raise ValueError(f"progress record: magic {magic:#x} version {version}, {MAGIC:#x} and {VERSION} expected")

    @classmethod
    def create(cls, round: int, rank: int) -> ProgressRecord:
        fd = os.memfd_create(f"trainmaster-progress-{round}-{rank}", os.MFD_CLOEXEC)
        os.ftruncate(fd, SIZE)
        memory = mmap.mmap(fd, SIZE)
        _HEAD.pack_into(memory, 0, MAGIC, VERSION, 0)
        record = cls(memory, fd)
        record.write(Progress(round=round, rank=rank, beat_ns=time.monotonic_ns()))
        record.set_control(Control())
        return record

    @classmethod
    def open(cls, fd: int) -> ProgressRecord:
        cls.opened += 1
        return cls(mmap.mmap(fd, SIZE), fd)

    def write(self, progress: Progress) -> None:
        """Publish the rank's half. One writer only."""
        p = progress
        self._sequence += 1
        _HEAD.pack_into(self._memory, 0, MAGIC, VERSION, self._sequence)
        _RANK.pack_into(
            self._memory, _RANK_AT, p.round, p.rank, p.phase, p.flags, p.step, p.device_step, p.total_steps, p.loss,
            p.tokens, p.resumed_step, p.beat_ns, p.started_ns, p.rendezvous_ns, p.built_ns, p.loaded_ns,
            p.first_step_ns, p.rss_bytes, p.device_bytes, p.step_ns, p.wait_ns,
            p.step_pauses, p.step_typical_ns, p.step_longest_ns, p.save_pauses, p.save_typical_ns, p.save_longest_ns,
            p.eval_pauses, p.eval_typical_ns, p.eval_longest_ns, p.save_total_ns, p.eval_total_ns,
            p.rss_peak_bytes, p.device_peak_bytes, p.device_limit_bytes, p.imported_ns,
        )  # fmt: skip
        self._sequence += 1
        _HEAD.pack_into(self._memory, 0, MAGIC, VERSION, self._sequence)

    def read(self) -> Progress:
        """The last whole write. A writer killed inside a write leaves the torn values: they are only progress."""
        for _ in range(100):
            before = _HEAD.unpack_from(self._memory, 0)[2]
            values = _RANK.unpack_from(self._memory, _RANK_AT)
            if before % 2 == 0 and _HEAD.unpack_from(self._memory, 0)[2] == before:
                break
        return Progress(*values, *_COLLECTIVE.unpack_from(self._memory, _COLLECTIVE_AT))

    def entered(self, number: int, kind: int) -> None:
        """The rank enters its `number`-th collective of the whole world. Apart from `write`: others may call it."""
        _COLLECTIVE.pack_into(self._memory, _COLLECTIVE_AT, number, kind)

    def set_control(self, control: Control) -> None:
        """Publish the agent's half. `stop_at` is packed before `stop_bound`, so it is never bound to an old step."""
        _CONTROL.pack_into(
            self._memory, _CONTROL_AT, control.stop_at, control.stop_bound, control.uploads_pending, control.copied_step
        )

    def control(self) -> Control:
        return Control(*_CONTROL.unpack_from(self._memory, _CONTROL_AT))

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)
