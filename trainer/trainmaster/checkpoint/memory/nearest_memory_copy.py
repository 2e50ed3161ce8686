"""What the memories of all agents hold of checkpoints, and which rank loads which file.

Each rank publishes through the round's store what its agent holds and which shard it needs itself. Rank 0 finds the
nearest file with this shard for each rank: its own, that of a replica in the same memory, or a peer's; and if there is
none, that of another island, which has what all islands share. Each rank then opens and verifies its file.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainmaster.checkpoint.files.checkpoint_manifest import Damaged
from trainmaster.checkpoint.files.memory_tier import RamFolder, checksum
from trainmaster.checkpoint.files.upload import index, read_header
from trainmaster.checkpoint.state.shard_identity import of_any_island
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.checkpoint_format import Manifest, directory_name, shard_name
from trainmaster.contract.wire.message_codec import WireError
from trainmaster.host import own_pod

Address = dict[str, Any]
Fetch = Callable[[Address, int, int, int], None]
"""A function of (address, step, round, rank) that copies a peer's file and its receipt into the own folder. It raises
OSError if that fails."""


@dataclass(frozen=True)
class Source:
    """A file in memory. `address` is the address of the peer that has it, or None for the own agent's memory."""

    rank: int
    folder: str
    address: Address | None = None


class RamFile:
    """A verified file in memory, as a source to load from. It stays readable after its name is removed."""

    def __init__(self, folder: RamFolder, step: int, round: int, rank: int) -> None:
        """Open and verify the file. Raises Damaged."""
        self.root, self.rank = str(folder.root), rank
        self.directory = directory_name(step, round)
        try:
            receipt = folder.receipt(step, round, rank)
            with folder.reading(step, round, rank) as file:
                # Copy on write: loading makes tensors of it, and those want memory that may be written to.
                self.memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
                found = checksum(memoryview(self.memory))
            if len(self.memory) != receipt.file.size or found != receipt.file.checksum:
                raise Damaged(f"{self._words()} doesn't match its checksum")
            tensors, values, common = index(*read_header(self.memory), shard_name(rank))
            self.manifest = Manifest(
                step=step,
                round=round,
                world_size=receipt.world_size,
                files=[],
                tensors=tensors,
                values=values,
                **common,
            )
        except (OSError, WireError, ValueError, KeyError, TypeError) as error:
            raise Damaged(f"{self._words()}: {error}") from None

    def view(self, path: str, start: int, end: int) -> memoryview:
        """Return the bytes [start, end) of the file, without a copy."""
        return memoryview(self.memory)[start:end]

    def _words(self) -> str:
        return f"the state of rank {self.rank} in the memory of {os.environ.get('HOSTNAME', 'this pod')}"


class Memory:
    """The access of this rank to the memory tier. `shard` names the part that it needs (see `LocalState.shard`)."""

    def __init__(
        self, folder: RamFolder, shard: str, *, fetch: Fetch | None = None, address: Address | None = None
    ) -> None:
        self.folder, self.shard = folder, shard
        self._fetch, self._address = fetch, address
        self._opened: RamFile | None = None

    def words(self) -> dict[str, Any]:
        """Return what this rank publishes. One rank of a pod lists all files of its agent."""
        files = []
        if own_pod.local_rank() == 0:
            for receipt in self.folder.receipts():
                files.append([receipt.step, receipt.round, receipt.rank, receipt.shard])
        place = f"{os.environ.get(environment.POD_UID, '')} {self.folder.root}"
        return {"shard": self.shard, "folder": place, "address": self._address, "files": files}

    def open(self, step: int, round: int, rank: int, address: Address | None) -> RamFile:
        """Fetch a file from the peer at `address`, if given, and open it. Raises Damaged."""
        if address is not None:
            if self._fetch is None:
                raise Damaged("peers can't be asked here")
            try:
                self._fetch(address, step, round, rank)
            except OSError as error:
                raise Damaged(f"the state of rank {rank} in a peer's memory: {error}") from None
        return RamFile(self.folder, step, round, rank)


class Inventory:
    """All files that the memories of the world hold. Rank 0 has it."""

    def __init__(self, world: list[Mapping[str, Any]]) -> None:
        """`world` has what each rank published, in the order of ranks. A rank without a memory tier has published no
        files."""
        self._world = world
        self.uploads_step = max((words.get("uploads", 0) for words in world), default=0)
        self._files: dict[tuple[int, int], list[tuple[str, int, str, Address | None]]] = {}
        self._excluded: set[tuple[int, int, str, int]] = set()
        for words in world:
            for step, round, rank, shard in words.get("files", []):
                held = self._files.setdefault((step, round), [])
                held.append((words["folder"], rank, shard, words["address"]))

    def directories(self) -> list[str]:
        """Return the directory names of all steps of which any memory holds a file, in no particular order."""
        return [directory_name(step, round) for step, round in self._files]

    def sources(self, step: int, round: int) -> list[Source | None]:
        """Return for each rank the nearest file with its shard, or None."""
        held = [f for f in self._files.get((step, round), []) if (step, round, f[0], f[1]) not in self._excluded]
        by_shard: dict[str, list[tuple[str, int, Address | None]]] = {}
        for folder, file_rank, shard, address in held:
            for label in {shard, of_any_island(shard)}:
                by_shard.setdefault(label, []).append((folder, file_rank, address))
        return [self._nearest(rank, words, by_shard) for rank, words in enumerate(self._world)]

    def exclude(self, step: int, round: int, source: Source) -> None:
        """Exclude a file from all later results, because it is damaged or cannot be fetched."""
        self._excluded.add((step, round, source.folder, source.rank))

    def _nearest(
        self, rank: int, words: Mapping[str, Any], by_shard: dict[str, list[tuple[str, int, Address | None]]]
    ) -> Source | None:
        shard = words.get("shard", "")
        fitting = by_shard.get(shard) or by_shard.get(of_any_island(shard), [])
        own = sorted((file != rank, file) for folder, file, _ in fitting if folder == words["folder"])
        if own:
            return Source(own[0][1], words["folder"])
        remote = [Source(file, folder, address) for folder, file, address in fitting if address is not None]
        # Those who need the same shard ask different peers.
        return remote[rank % len(remote)] if remote else None


def tell(store: Any, rank: int, memory: Memory | None, uploads_step: int = 0) -> None:
    """Publish what this rank has and needs, and the newest step of the uploads that are under way on its machine."""
    words = memory.words() if memory is not None else {}
    store.set(f"resume/memory/{rank}", json.dumps({**words, "uploads": uploads_step}))


def hear(store: Any, world_size: int) -> Inventory:
    """Return what all ranks have published."""
    keys = [f"resume/memory/{rank}" for rank in range(world_size)]
    words = store.multi_get(keys) if store.has_extended_api() else [store.get(key) for key in keys]
    return Inventory([json.loads(word) for word in words])
