"""The checkpoints of a rank from its start to its end: where it resumes, what it saves, and how saves are completed.

Saves go to storage, and to the agent's memory if it has some: between two steps, or after a peer has died.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import nn

from trainmaster.checkpoint.files import peer_client
from trainmaster.checkpoint.files.memory_tier import RamFolder
from trainmaster.checkpoint.files.storage import open_storage
from trainmaster.checkpoint.memory.memory_save_interval import Interval
from trainmaster.checkpoint.memory.memory_saver import RamSaver
from trainmaster.checkpoint.memory.memory_snapshot import LocalState
from trainmaster.checkpoint.memory.nearest_memory_copy import Memory
from trainmaster.checkpoint.state import capture, restore_objects
from trainmaster.checkpoint.state.resume import Checkpoint, agree
from trainmaster.checkpoint.state.resume_conditions import Resume
from trainmaster.checkpoint.state.save_shares import owned, place_of
from trainmaster.checkpoint.state.storage_saver import Saver, content
from trainmaster.checkpoint.state.waits_before_resume import await_ranks, await_uploads
from trainmaster.contract.wire import channel as wire
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.messages import StoreAddress
from trainmaster.contract.wire.progress_record import Phase
from trainmaster.errors import NotSaved
from trainmaster.rank.reporter import Reporter

LAST_WRITE_S = 10.0  # for handing over what is on its way to storage, after a failure
_POLL_S = 0.0005


class Session:
    """The checkpoints of one rank.

    `objects` are named modules, optimizers and other objects with a state_dict. With `url` "" nothing is saved.
    """

    def __init__(
        self,
        url: str,
        objects: Mapping[str, Any],
        reporter: Reporter,
        *,
        rank: int,
        world_size: int,
        store: Any,
        keep: int = 0,
    ) -> None:
        self.url, self.objects, self.reporter = url, objects, reporter
        self.rank, self.world_size, self.store, self.keep = rank, world_size, store, keep
        self.place = place_of(objects, rank, world_size)
        self.saver: Saver | None = None
        self.ram: RamSaver | None = None
        self.from_memory = False  # storage may lack what this round began with
        self.interval = Interval.from_environment()
        self._restored: set[str] = set()

    @cached_property
    def _local(self) -> LocalState:
        return LocalState(self.objects, self.rank)

    def restore(self, asked: Resume) -> Checkpoint | None:
        """Agree with all ranks where to resume, and load it. Return None for a start from the beginning.

        Raises ConfigError and Fenced.
        """
        if not self.url:
            return None
        self.reporter.phase(Phase.LOAD)
        await_ranks(self.reporter)
        storage = open_storage(self.url)
        memory = self._memory()
        round, found = agree(
            storage,
            self.store,
            self.rank,
            self.world_size,
            asked,
            self.reporter.event,
            memory,
            uploads_step=self.reporter.control().uploads_step,
            await_uploads=lambda: await_uploads(self.reporter),
        )
        self.saver = Saver(
            storage.root,
            rank=self.rank,
            world_size=self.world_size,
            round=round,
            keep=self.keep,
            began=found.manifest.step if found is not None else 0,
            place=self.place,
            send=self.reporter.staged if self.reporter.channel is not None else None,
            on_result=self._tell_failure,
        )
        if found is not None:
            self.from_memory = found.tier != "storage"
            with torch.no_grad():
                self._restored = restore_objects.restore(
                    self.objects, found.storage, found.directory, found.manifest, self.rank
                )
        if memory is not None:
            self._open_ram(memory.folder, round, found)
        return found

    def restored(self, module: nn.Module) -> set[str]:
        """Return the names, in one of the modules, of the parameters and buffers that `restore` has set."""
        prefix = next(f"{name}." for name, thing in self.objects.items() if thing is module)
        return {name.removeprefix(prefix) for name in self._restored if name.startswith(prefix)}

    def boundary(self) -> None:
        """Note the state between two steps. Call it before the next step changes anything."""
        if self.ram is not None:
            self.ram.state.boundary()
            if self.interval.every != 0:  # without saves, memory is taken by a rescue alone
                self.ram.prepare()

    def due(self, step: int) -> bool:
        """Return True if `step` is to be saved to memory."""
        return self.ram is not None and self.interval.due(step)

    def copied(self) -> bool:
        """Return True if a peer has the last save to memory, or keeps no copies (see `RamSaver.copied`)."""
        return self.ram is None or self.ram.copied()

    def await_copy(self) -> None:
        """Wait until `copied` returns True."""
        while not self.copied():
            time.sleep(_POLL_S)
            self.reporter.beat()

    def remember(self, step: int, common: dict[str, Any]) -> bool:
        """Copy the state of the last boundary, after `step`, to the agent's memory. Return False if it is not saved."""
        return self.ram is not None and self.ram.save(step, common)

    def rescue(self, step: int, common: dict[str, Any]) -> int | None:
        """Save like `remember` after a peer has died, and wait until the save is complete.

        Return the step that is saved, or None.
        """
        if self.ram is None or not self.ram.save(step, common, wait=True):
            return None
        self.drain(LAST_WRITE_S)
        return step

    @property
    def save_s(self) -> float:
        """Return the seconds of this process that the last save to memory took."""
        return self.ram.cost_s if self.ram is not None else 0.0

    def settle(self) -> None:
        """Wait until the saves of the step before are copied or have failed. Call it before a step's last
        all-reduce."""
        if self.ram is not None:
            self.ram.settle()
        if self.saver is not None:
            self.saver.settle()

    def save(self, step: int, common: dict[str, Any], *, beside: bool = False) -> None:
        """Save the state after `step`, the last completed one. It becomes durable in the background.

        With `beside`, the copy may run during the next step, up to `settle`; nothing may change parameters before that.
        """
        if self.saver is None:
            return
        before, self.reporter.progress.phase = self.reporter.progress.phase, Phase.SAVE
        self.reporter.beat()
        with torch.no_grad():
            self.saver.save(step, capture.capture(self.objects, self.rank), common)
            if not beside:
                self.saver.settle()
        self.reporter.phase(Phase(before))

    def drain(self, timeout_s: float | None = None) -> None:
        """Wait until this process has passed on all saves. Report an event after `timeout_s` seconds."""
        if self.saver is not None and not self.saver.drain(timeout_s):
            self.reporter.event(
                "CheckpointLost", f"rank {self.rank}: a checkpoint was not written within {timeout_s} s"
            )

    def finish(self) -> None:
        """Wait until this process has passed on the last save. Raises NotSaved if it has failed here."""
        self.drain()
        if self.saver is not None and self.saver.failure:
            raise NotSaved(f"the last save has failed: {self.saver.failure}")

    def digest(self) -> str:
        """Return a sha256 over all tensors of all ranks on rank 0, and "" on the others. All ranks must call it.

        The digest is the same for the same state in the same topology.
        """
        own = hashlib.sha256()
        with torch.no_grad():
            pieces = owned(capture.capture(self.objects, self.rank), self.place)
        for piece in sorted(pieces, key=lambda piece: piece.key):
            own.update(f"{piece.key} {piece.data.dtype} {list(piece.data.shape)}\n".encode())
            own.update(content(piece.data))
        self.store.set(f"digest/{self.rank}", own.hexdigest())
        if self.rank != 0:
            return ""
        parts = [self.store.get(f"digest/{rank}") for rank in range(self.world_size)]
        return hashlib.sha256(b"\n".join(parts)).hexdigest()

    def _tell_failure(self, result: dict[str, Any]) -> None:
        """Report a failure that the agent cannot know of, because the save never reached it."""
        if result["error"]:
            self.reporter.send(wire.EVENT, {"reason": "CheckpointFailed", "message": result["error"]})

    def _memory(self) -> Memory | None:
        folder, budget = os.environ.get(environment.RAM_DIR), int(os.environ.get(environment.RAM_BUDGET) or 0)
        if not folder or not budget:
            return None
        own = RamFolder(folder, budget)
        address = peer_client.own_address()
        return Memory(
            own,
            self._local.shard(),
            fetch=lambda address, step, round, rank: peer_client.fetch(own, StoreAddress(**address), step, round, rank),
            address=dataclasses.asdict(address) if address is not None else None,
        )

    def _open_ram(self, folder: RamFolder, round: int, found: Checkpoint | None) -> None:
        resumed = (found.manifest.step, found.manifest.round) if found is not None else None
        if resumed is not None and not folder.path(*resumed, self.rank).exists():
            resumed = None
        self.ram = RamSaver(
            folder,
            self._local,
            rank=self.rank,
            world_size=self.world_size,
            round=round,
            resumed=resumed,
            say=self.reporter.event,
            saved=lambda step: self.reporter.send(wire.IN_MEMORY, {"step": step, "round": round}),
            copied_step=lambda: self.reporter.control().copied_step,
        )
