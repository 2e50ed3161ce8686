"""The shared-memory record through which an agent observes a rank and sends it control values.

Each rank has one anonymous memory file (memfd) of one page, which disappears with the processes that hold it. The rank
writes its progress and the agent its control values, each into a double buffer, so both are always read whole.
CLOCK_MONOTONIC is the same in all processes of a machine, so times are compared directly.

An agent and its ranks have the same layout: they run from one installation, except where a script's own image has
another version of trainmaster installed. Fields that one of the two does not know are 0 or ignored; a record of another
layout is refused.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from trainmaster.contract.wire.double_buffer import DoubleBuffer

MAGIC = 0x544D5052  # "TMPR"
VERSION = 2  # version of the layout; fields that are added at the end of a half do not change it
SIZE = mmap.PAGESIZE

LOADED = 8  # bit of Progress.flags: steps are counted in this process alone, and it loaded a file before the first one
RESCUES = 2  # bit of Progress.flags: this rank saves its last completed step when its agent asks (channel RESCUE)
IMPORTING = 4  # bit of Progress.flags: the main thread of a script is in an import
OBEYS_STOP = 1  # bit of Progress.flags: this rank reads `stop_at`; others get SIGTERM when a stop binds

_HEAD = struct.Struct("<II")  # magic, version
# Where the parts lie (bytes from, to). Each starts at a cache line of its own, for each has another writer.
_ENTERED_AT = slice(64, 72)
_CONTROL_AT = slice(128, 256)
_PROGRESS_AT = slice(1024, 1792)
_CONTROL = "qiiqiq"
_PROGRESS = "iiiiqqqdqqqqqqqqqqqqqqqqqqqqqqqqqqqqd"
_LOCK = struct.Struct("hhqqi")  # struct flock of fcntl(2): type, whence, start, length, pid
_KINDS = 256  # that a collective can have: its word is number * _KINDS + kind


class Phase(IntEnum):
    """What a rank is doing. How long it may be silent depends on the phase."""

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
    """The values that a rank writes. Times are nanoseconds of CLOCK_MONOTONIC; 0 means that it has not happened yet."""

    round: int = 0
    rank: int = -1
    phase: int = 0
    flags: int = 0
    step: int = 0  # host: steps completed as Python sees them
    device_step: int = 0  # steps whose loss is known
    total_steps: int = 0
    loss: float = math.nan  # the loss of `device_step`
    tokens: int = 0  # consumed in this process
    resumed_step: int = -1  # after which it began; -1: not known
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
    last_save: int = 0  # the step after which the script last called torch.save; 0: after none
    mfu: float = 0.0  # model FLOPs utilization of the last step, where the trainer knows it; 0: it doesn't
    # The last collective of the whole world that this process has entered. See `ProgressRecord.entered`.
    collectives: int = 0
    collective: int = 0  # an index of COLLECTIVES


COLLECTIVES = (
    *("", "allreduce", "allgather", "reduce_scatter", "broadcast", "barrier", "alltoall"),
    *("reduce", "gather", "scatter"),
)


@dataclass
class Control:
    """The values that the agent writes for the rank."""

    stop_at: int = -1  # save and stop after this step; -1: go on
    stop_bound: int = 0  # 1: every rank of the world has seen stop_at, so it binds
    uploads_pending: int = 0  # number of uploads of earlier rounds: what storage has is known when this is 0
    copied_step: int = 0  # the step of this round of which a peer has this rank's state; -1: none yet; 0: no peer
    ranks_ending: int = 0  # number of ranks of earlier rounds that still live: what memory has is known when this is 0
    uploads_step: int = 0  # the newest step of these uploads; 0: there is none


class OtherRecord(ValueError):
    """The memory is not a progress record, or has another layout. The message is a sentence for a person."""


class ProgressRecord:
    """A progress record in shared memory. The agent creates it; the rank opens the descriptor that it inherits."""

    opened: ClassVar[int] = 0
    """Number of calls of `open` in this process. The observer of a script stops writing once the script writes."""

    def __init__(self, memory: mmap.mmap, fd: int) -> None:
        self._memory = memory
        self.fd = fd
        magic, version = _HEAD.unpack_from(memory, 0)
        if magic != MAGIC:
            raise OtherRecord(f"descriptor {fd} is not the progress record of a rank; it begins with {magic:#x}")
        if version != VERSION:
            raise OtherRecord(
                f"the agent's progress record has layout {version}, and the trainmaster that this rank imports knows "
                f"layout {VERSION}: install the version of trainmaster that the agent has, or none, in the rank's image"
            )
        with memoryview(memory) as view:
            self._entered = view[_ENTERED_AT].cast("Q")
            self._control = DoubleBuffer(view[_CONTROL_AT], _CONTROL)
            self._progress = DoubleBuffer(view[_PROGRESS_AT], _PROGRESS)

    @classmethod
    def create(cls, round: int, rank: int) -> ProgressRecord:
        """Return a new record for `rank` in `round`, in a memory file of its own."""
        fd = os.memfd_create(f"trainmaster-progress-{round}-{rank}", os.MFD_CLOEXEC)
        os.ftruncate(fd, SIZE)
        memory = mmap.mmap(fd, SIZE)
        _HEAD.pack_into(memory, 0, MAGIC, VERSION)  # no other process has the memory yet
        record = cls(memory, fd)
        record.write(Progress(round=round, rank=rank, beat_ns=time.monotonic_ns()))
        record._control.write(*vars(Control()).values())
        return record._with_both_read()

    @classmethod
    def open(cls, fd: int) -> ProgressRecord:
        """Return the record in the memory file `fd`. Raises OtherRecord if the file holds no record of this layout."""
        cls.opened += 1
        return cls(mmap.mmap(fd, SIZE), fd)._with_both_read()

    def write(self, progress: Progress) -> None:
        """Publish the rank's values. Only one process may write at a time."""
        p = progress
        self._progress.write(
            p.round, p.rank, p.phase, p.flags, p.step, p.device_step, p.total_steps, p.loss,
            p.tokens, p.resumed_step, p.beat_ns, p.started_ns, p.rendezvous_ns, p.built_ns, p.loaded_ns,
            p.first_step_ns, p.rss_bytes, p.device_bytes, p.step_ns, p.wait_ns,
            p.step_pauses, p.step_typical_ns, p.step_longest_ns, p.save_pauses, p.save_typical_ns, p.save_longest_ns,
            p.eval_pauses, p.eval_typical_ns, p.eval_longest_ns, p.save_total_ns, p.eval_total_ns,
            p.rss_peak_bytes, p.device_peak_bytes, p.device_limit_bytes, p.imported_ns,
            p.last_save, p.mfu,
        )  # fmt: skip

    def read(self) -> Progress:
        """Return the rank's values as last published, with the last collective that the rank has entered."""
        progress = Progress(*self._progress.read())
        progress.collectives, progress.collective = divmod(self._entered[0], _KINDS)
        return progress

    def entered(self, number: int, kind: int) -> None:
        """Record that the rank enters its `number`-th collective of the whole world.

        `kind` is an index of COLLECTIVES. Both values are stored as one word with one store, so any thread may call
        this while another thread is in `write`.
        """
        self._entered[0] = number * _KINDS + kind

    def set_control(self, control: Control) -> None:
        """Publish the agent's values if they differ from those that are published. Only the agent calls this."""
        c = control
        values = (c.stop_at, c.stop_bound, c.uploads_pending, c.copied_step, c.ranks_ending, c.uploads_step)
        if values != self._control.read():
            self._control.write(*values)

    def control(self) -> Control:
        """Return the agent's values as last published."""
        return Control(*self._control.read())

    def claimant(self) -> int:
        """Return the pid of the process that has claimed this record by a lock; 0 if none has.

        `executed_rank_observation` claims a record.
        """
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _LOCK.unpack(fcntl.fcntl(self.fd, fcntl.F_GETLK, asked))
        return 0 if kind == fcntl.F_UNLCK else int(pid)

    def close(self) -> None:
        """Release the memory and close the descriptor."""
        self._entered.release()
        self._control.release()
        self._progress.release()
        self._memory.close()
        os.close(self.fd)

    def _with_both_read(self) -> ProgressRecord:
        """Read both buffers once, so that each later read has an earlier one to return if it meets a write."""
        self._control.read()
        self._progress.read()
        return self
