"""Saves of this rank to its agent's memory: one copy into a mapped file, and a thread that completes the save.

Two files take turns, so that one complete step is there at any time: while the newer file has no receipt, the older one
counts. A rank waits for the receipt (`settle`) before the last all-reduce of the next step, so a rank that gets past
this all-reduce knows that the step before it is complete on all ranks. Another thread makes the files ready after the
first step, because new pages cost as much time as several copies.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trainmaster.checkpoint.files.memory_tier import RamFolder, checksum, into
from trainmaster.checkpoint.memory import mapped_file
from trainmaster.checkpoint.memory.mapped_file import MappedFile
from trainmaster.checkpoint.memory.memory_snapshot import LocalState
from trainmaster.checkpoint.state.file_layout import Layout, header
from trainmaster.contract.wire import memory_tier_size
from trainmaster.contract.wire.checkpoint_format import Receipt, ShardFile
from trainmaster.contract.wire.message_codec import encode
from trainmaster.host import own_pod

_PAGE = mmap.PAGESIZE
_SLACK = 4096  # bytes of a header beyond what its first version takes: numbers grow
_COMMON = 64 << 10  # bytes of a header that are kept for what the first save adds to it

PREPARED_FROM = 16 << 20
"""Bytes of a state from which on its files are made ready before the first save."""

COPY_LIMIT_S = 120.0
"""Seconds that saves to memory wait for a copy at a peer."""


class RamSaver:
    """Saves a rank's local state to the memory tier of its agent.

    `resumed` is the (step, round) that this rank began with, if its file is in `folder`; the file is kept until a newer
    one is complete. `off` says why saving has ended, and is "" while it continues. The thread calls `saved` with each
    completed step. `copied_step` returns the newest step that a peer has, or 0 if no peer keeps copies.
    """

    def __init__(
        self,
        folder: RamFolder,
        state: LocalState,
        *,
        rank: int,
        world_size: int,
        round: int,
        resumed: tuple[int, int] | None = None,
        say: Callable[[str, str], None] = lambda reason, message: None,
        saved: Callable[[int], None] = lambda step: None,
        copied_step: Callable[[], int] = lambda: 0,
    ) -> None:
        self.folder, self.state, self.rank, self.world_size, self.round = folder, state, rank, world_size, round
        self.off = ""
        self.blocked_s = 0.0  # how long the last save kept the step waiting
        self.cost_s = 0.0  # the same, and what the thread took of a core
        self.newest = resumed
        self._say, self._saved, self._copied_step = say, saved, copied_step
        self._has_peer = copied_step() != 0
        self._uncopied = 0, 0.0  # a step that is on its way to a peer, and since when that was seen
        self._shard = state.shard()
        self._reserved = 0
        self._slots: list[MappedFile] | None = None
        self._changed = threading.Condition()  # guards what the thread that prepares files and a save both know
        self._preparing = self._stop = False
        self._prepared_size: int | None = None  # 0: nothing is to be prepared
        self._boundaries = 0
        self._saved_once = False
        self._work: queue.Queue[Callable[[], None]] = queue.Queue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None

    def prepare(self) -> None:
        """Make the files ready in the background, if a step of this process is completed. Call it at each boundary.

        A file from before that step may still be what another rank resumes from. Without room, nothing is said here:
        the first save finds out and says so.
        """
        if self._prepared_size is not None:
            return
        self._boundaries += 1
        if self._boundaries < 2:
            return
        layout = self.state.layout()
        if layout is None:
            return
        self._prepared_size = 0
        if self._slots is not None or self.off or layout.size < PREPARED_FROM:
            return
        reserved = self._to_reserve(layout, self.state.values(), {})
        # Where not all files of the pod fit, who comes first decides what is saved, so nothing may come earlier.
        if self._shortage(layout.size, reserved):
            return
        self._reserved, self._prepared_size = reserved, reserved + layout.size
        self._preparing = True
        # Not in the constructor: a fork keeps no thread.
        threading.Thread(target=self._prepare, args=(self._prepared_size,), name="ram-files", daemon=True).start()

    def save(self, step: int, common: dict[str, Any], *, wait: bool = False) -> bool:
        """Copy the state of the last boundary, after `step`. When the call returns, the state may change.

        Return False if the step is not saved. With `wait`, the call returns when the save is complete.
        """
        began = time.perf_counter()
        self.settle()
        if self.off or self.newest == (step, self.round):
            return not self.off
        layout = self.state.layout()
        if layout is None:
            return False
        values = self.state.values()
        if not self._saved_once:
            self._reserved = self._to_reserve(layout, values, common)
        try:
            slot = self._free_slot(self._reserved + layout.size, step, last=wait)
        except OSError as error:
            self._no_room(error, layout.size)
            return False
        if slot is None:
            return False
        with torch.no_grad():
            targets = slot.targets(layout, self._reserved)
            if targets:
                torch._foreach_copy_(targets, [part for _, _, part in layout.parts])
        self._saved_once = True
        self._idle.clear()
        blocked_s = time.perf_counter() - began

        def finish() -> None:
            spent = time.thread_time()
            self._finish(slot, step, layout, values, common)
            self.blocked_s, self.cost_s = blocked_s, blocked_s + time.thread_time() - spent

        if wait:
            self._do(finish)
        else:
            if self._thread is None:  # not in the constructor: a fork keeps no thread
                self._thread = threading.Thread(target=self._run, name="ram", daemon=True)
                self._thread.start()
            self._work.put(finish)
        return True

    def copied(self) -> bool:
        """Return True if a peer has the last save, or keeps no copies.

        Before that, nothing is overwritten, so that after the loss of a pod there is a step that all other pods still
        have. After COPY_LIMIT_S seconds the result is True in any case.
        """
        newest, known = self.newest, self._copied_step()
        if not newest or newest[1] != self.round or not known or known >= newest[0]:
            return True
        if self._uncopied[0] != newest[0]:
            self._uncopied = newest[0], time.monotonic()
        return time.monotonic() - self._uncopied[1] > COPY_LIMIT_S

    def settle(self, timeout_s: float | None = None) -> bool:
        """Wait until the last save is complete or has failed. Return False after `timeout_s` seconds."""
        return self._idle.wait(timeout_s)

    def _run(self) -> None:
        while True:
            self._do(self._work.get())

    def _do(self, finish: Callable[[], None]) -> None:
        try:
            finish()
        except Exception as error:  # noqa: BLE001 training goes on without this tier, and no caller waits for it forever
            self._end(f"it can't be written: {error!r}")
        finally:
            self._idle.set()

    def _to_reserve(self, layout: Layout, values: dict[str, Any], common: dict[str, Any]) -> int:
        """Return the bytes for the header of any later step. The data begins on a page boundary."""
        least = len(header(layout, values, common)) + _SLACK
        if layout.size >= PREPARED_FROM:  # the same with what the first save adds, so that what is prepared fits
            least = max(least, len(header(layout, values, {})) + _COMMON)
        return -(-least // _PAGE) * _PAGE

    def _prepare(self, size: int) -> None:
        """Make the files of this rank ready: one after the other, so that a save can use the first one."""
        try:
            slots = self._inherited(size, waits=True)
            with self._changed:
                self._slots = slots
            for slot in list(slots):
                if slot.size == size:
                    slot.populate(self._is_stopped)
                with self._changed:
                    slot.waits = False
                    self._changed.notify_all()
            for number in range(2 - len(slots)):
                if self._stop or not self.folder.room(size):
                    return
                path = mapped_file.prepared_path(self.folder, number, self.round, self.rank)
                slot = mapped_file.make(path, size, self._is_stopped)
                slot.populate(self._is_stopped)
                with self._changed:
                    slots.append(slot)
                    self._changed.notify_all()
        except OSError:
            pass  # the save that needs the file says why it can't be made
        finally:
            with self._changed:
                self._preparing = False
                for slot in self._slots or []:
                    slot.waits = False
                self._changed.notify_all()

    def _is_stopped(self) -> bool:
        return self._stop

    def _await_prepared(self, size: int) -> None:
        """Wait for a file of `size` bytes that can be written into, if such a file is being prepared."""
        with self._changed:
            if self._preparing and size != self._prepared_size:
                self._stop = True
            self._changed.wait_for(lambda: not self._preparing or any(not slot.waits for slot in self._free(size)))

    def _await_end_of_preparation(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._preparing)

    def _free(self, size: int) -> list[MappedFile]:
        slots = self._slots or []
        return [slot for slot in slots if slot.size == size and (slot.holds is None or slot.holds != self.newest)]

    def _finish(
        self, slot: MappedFile, step: int, layout: Layout, values: dict[str, Any], common: dict[str, Any]
    ) -> None:
        head = header(layout, values, common, self._reserved)
        if len(head) != self._reserved:
            raise OSError(errno.EFBIG, "the state that is not a tensor has grown too large for the file")
        slot.memory[: len(head)] = head
        size = self._reserved + layout.size
        receipt = Receipt(
            step=step,
            round=self.round,
            rank=self.rank,
            world_size=self.world_size,
            file=ShardFile(slot.path.name.lstrip("."), size, checksum=checksum(memoryview(slot.memory)[:size])),
            tensors={},  # the file's own header has them
            common=common,
            shard=self._shard,
        )
        self.folder.adopt(step, self.round, self.rank, slot.path, encode(receipt))
        slot.path = self.folder.path(step, self.round, self.rank)
        slot.holds = self.newest = (step, self.round)
        fcntl.flock(slot.fd, fcntl.LOCK_UN)
        self._saved(step)

    def _free_slot(self, size: int, step: int, last: bool) -> MappedFile | None:
        """Return a mapped file to write into, locked and with a hidden name, or None if there is none.

        `last` is for the save after a failure. A peer may have only the older step of a rank that is lost, so the file
        of this step is kept if there is room.
        """
        self._await_prepared(size)
        if self._slots is None:
            self._slots = self._inherited(size)
        free = self._free(size)
        hidden = self.folder.path(step, self.round, self.rank)
        hidden = hidden.with_name(f".{hidden.name}")
        if last and all(slot.holds is not None for slot in free):
            if len(self._slots) <= 2 and self.folder.room(size):
                return self._new_slot(hidden, size)
            if not self.copied():
                return None
        if slot := self._taken(free, hidden):
            return slot
        if self._preparing:
            self._await_end_of_preparation()
            if slot := self._taken([slot for slot in self._free(size) if slot not in free], hidden):
                return slot
        return self._new_slot(hidden, size)

    def _taken(self, free: list[MappedFile], hidden: Path) -> MappedFile | None:
        """Lock the first of the files that nobody reads, and move it to `hidden`. Return None if all are being
        read."""
        for slot in sorted(free, key=lambda slot: slot.waits):
            try:
                fcntl.flock(slot.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # a reader copies it
                continue
            if slot.holds is not None:
                self.folder.receipt_path(*slot.holds, self.rank).unlink(missing_ok=True)
                slot.holds = None
            into(hidden.parent, partial(os.replace, slot.path, hidden))
            with contextlib.suppress(OSError):
                slot.path.parent.rmdir()
            slot.path = hidden
            return slot
        return None

    def _new_slot(self, path: Path, size: int) -> MappedFile | None:
        self._await_end_of_preparation()
        assert self._slots is not None
        for slot in [s for s in self._slots if s.size != size and (s.holds is None or s.holds != self.newest)]:
            self._slots.remove(slot)
            self._forget(slot)
        if len(self._slots) <= 2 and not self.folder.room(size):
            self._drop_foreign()
        if len(self._slots) > 2 or not self.folder.room(size):
            if not self._slots or all(slot.holds == self.newest for slot in self._slots):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return None  # the other one is being copied: this step is left out
        slot = mapped_file.make(path, size)
        self._slots.append(slot)
        return slot

    def _inherited(self, size: int, *, waits: bool = False) -> list[MappedFile]:
        """Return the files that an earlier process of this rank left. This process may have resumed from one of
        them."""
        self.folder.sweep(self.rank)
        mapped_file.sweep_prepared(self.folder)
        slots = []
        for step, round, rank in self.folder.names():
            if rank != self.rank:
                continue
            path = self.folder.path(step, round, rank)
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                slots.append(MappedFile(path, fd, os.fstat(fd).st_size, (step, round)))
            except (OSError, ValueError):
                self.folder.remove(step, round, rank)
        slots.sort(key=lambda slot: slot.holds != self.newest)
        kept = [slot for slot in slots[:2] if slot.holds == self.newest or slot.size == size]
        for slot in slots:
            slot.waits = waits
            if slot not in kept:
                self._forget(slot)
        return kept

    def _forget(self, slot: MappedFile) -> None:
        if slot.holds is not None:
            self.folder.remove(*slot.holds, self.rank)
        slot.path.unlink(missing_ok=True)
        slot.close()

    def _drop_foreign(self) -> None:
        """Remove files of older rounds that belong to ranks of other pods."""
        first = self.rank - own_pod.local_rank()
        here = range(first, first + own_pod.size())
        for step, round, rank in self.folder.names():
            if rank not in here and round < self.round:
                self.folder.remove(step, round, rank)

    def _no_room(self, error: OSError, state: int) -> None:
        """Switch the tier off. All ranks of a pod, and of pods with the same files, give the same reason, so that
        people read it once."""
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
            self._end(f"it can't be written: {error}")
            return
        if words := self._shortage(state, self._reserved):
            self._end(f"they {words}")
            return
        size = self._reserved + state
        words = f"a file of {size >> 20} MiB doesn't fit into the memory that the pod has left"
        if (left := self.folder.left()) < size:
            words += f", {int(left) >> 20} MiB"
        self._end(words)

    def _shortage(self, state: int, reserved: int) -> str:
        """Return why the job's limit is too small for all files of the pod, or "" if it is not."""
        file = max(memory_tier_size.file_size(state, reserved), self.folder.largest() + memory_tier_size.RECEIPT)
        limit = memory_tier_size.limit_of(self.folder.budget)
        return memory_tier_size.shortage(file, own_pod.size(), limit, copies=self._has_peer)

    def _end(self, why: str) -> None:
        self.off, self._stop = why, True
        self._await_end_of_preparation()
        for slot in [slot for slot in self._slots or [] if slot.holds is None]:
            assert self._slots is not None
            self._slots.remove(slot)
            self._forget(slot)
        self._say("RamCheckpointsOff", f"no checkpoints in memory: {why}")
