"""Where a round resumes: rank 0 proposes a checkpoint, and all ranks verify their share of its files.

The newest step that memory or storage covers is chosen, and each rank loads its part from the nearest place. Ranks
exchange proposals and verdicts through the round's store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from trainmaster.checkpoint.files import checkpoint_manifest, lineage
from trainmaster.checkpoint.files.storage import Storage, open_storage
from trainmaster.checkpoint.memory.nearest_memory_copy import Inventory, Memory, RamFile, hear, tell
from trainmaster.checkpoint.state.resume_conditions import Resume
from trainmaster.checkpoint.state.waits_before_resume import begin_when_writable
from trainmaster.contract.wire.checkpoint_format import MANIFEST, Lineage, Manifest, parse_directory
from trainmaster.errors import ConfigError, Fenced, TrainmasterError

Say = Callable[[str, str], None]

_OF_THE_FILES = frozenset({"step", "round", "world_size", "files", "tensors", "values", "protocol"})
"""The fields of a manifest that say what its files hold. All others are the same for all ranks of a run."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that all ranks have verified, or this rank's part of it in memory."""

    storage: Storage | RamFile
    directory: str
    manifest: Manifest
    tier: str = "storage"  # the farthest tier that any rank loads from

    @property
    def path(self) -> str:
        """Return the path of the checkpoint's directory, for messages and for programs that read it."""
        return f"{self.storage.root}/{self.directory}"


def agree(
    storage: Storage,
    store: Any,
    rank: int,
    world_size: int,
    asked: Resume,
    say: Say,
    memory: Memory | None = None,
    *,
    uploads_step: int = 0,
    await_uploads: Callable[[], None] = lambda: None,
) -> tuple[int, Checkpoint | None]:
    """Choose where to resume, the same on all ranks, and create the lineage file of the round.

    Return (round, checkpoint), with None for a start from the beginning. `store` is a torch store that all ranks share.
    All ranks call this when no rank of an earlier round lives on their machine. `uploads_step` is the newest step of
    the uploads that are under way there (0: none is), and `await_uploads` waits for them. All ranks do so, unless
    memory has all parts of a checkpoint that is as new. `say(reason, message)` reports damaged checkpoints as events.
    Raises ConfigError and Fenced.
    """
    tell(store, rank, memory, uploads_step)
    if store.add("resume/ready", 1) == world_size:
        store.set("resume/all-ready", "1")
    part = _Part(store, rank, world_size, memory, await_uploads)
    if rank == 0:
        store.get("resume/all-ready")
        inventory = hear(store, world_size) if memory is not None else Inventory([])
        outcome = _lead(storage, _Turns(part, inventory, say), asked, say)
    else:
        outcome = _follow(part)
    if "error" in outcome:
        raise (Fenced if outcome["error"] == "Fenced" else ConfigError)(outcome["message"])
    round, root, directory = outcome["round"], outcome["root"], outcome["directory"]
    if root is None:
        return round, None
    if part.opened is not None and part.opened.directory == directory:
        found = Checkpoint(part.opened, directory, part.opened.manifest, outcome["tier"])
    else:
        source = open_storage(root)
        manifest = checkpoint_manifest.read_manifest(source, directory)
        found = Checkpoint(source, directory, manifest, outcome["tier"])
    return round, replace(found, manifest=_agreed(store, rank, found.manifest))


def _agreed(store: Any, rank: int, manifest: Manifest) -> Manifest:
    """Return `manifest` with what rank 0's says about the whole run, so that all ranks go on in the same way.

    Files of the same step may differ there: one that was saved to memory before the evaluation of its step does not
    know that evaluation, and one that was saved after it does. Otherwise some ranks would evaluate the step again, and
    wait for the others.
    """
    if rank == 0:
        about = {field.name: getattr(manifest, field.name) for field in fields(Manifest)}
        store.set("resume/about", json.dumps({name: about[name] for name in about.keys() - _OF_THE_FILES}))
    return replace(manifest, **json.loads(store.get("resume/about")))


class _Part:
    """The part of one rank in each turn of the agreement."""

    def __init__(
        self, store: Any, rank: int, world_size: int, memory: Memory | None, await_uploads: Callable[[], None]
    ) -> None:
        self.store, self.rank, self.world_size, self.memory = store, rank, world_size, memory
        self._await_uploads = await_uploads
        self.opened: RamFile | None = None

    def take(self, turn: int, message: dict[str, Any]) -> None:
        """Verify this rank's share, and publish a finding. The last rank without a finding publishes an empty
        verdict."""
        try:
            if "uploads" in message:
                self._await_uploads()
            elif "verify" in message:
                asked = message["verify"]
                share = [tuple(file) for file in asked["files"][self.rank :: self.world_size]]
                checkpoint_manifest.verify(open_storage(asked["root"]), asked["directory"], share)
            else:
                self._open(**message["open"])
        except checkpoint_manifest.Damaged as error:
            self.store.set(f"resume/verdict/{turn}", json.dumps([self.rank, str(error)]))
            return
        if self.store.add(f"resume/verified/{turn}", 1) == self.world_size:
            self.store.set(f"resume/verdict/{turn}", "")

    def _open(self, step: int, round: int, files: list[Any]) -> None:
        """Open this rank's file in memory. `files` has for each rank null or [rank of the file, address of the peer or
        null]."""
        self.opened = None
        mine = files[self.rank]
        if mine is not None:
            if self.memory is None:
                raise checkpoint_manifest.Damaged(f"rank {self.rank} has no memory for checkpoints")
            self.opened = self.memory.open(step, round, *mine)


class _Turns:
    """The messages of rank 0 to all ranks, in turn: what to verify or to open, and at last the outcome."""

    def __init__(self, part: _Part, inventory: Inventory, say: Say) -> None:
        self.part, self.inventory, self.say, self.turn = part, inventory, say, 0

    def publish(self, message: dict[str, Any]) -> None:
        self.turn += 1
        self.part.store.set(f"resume/turn/{self.turn}", json.dumps(message))

    def await_uploads(self) -> None:
        """Let all ranks wait for uploads of earlier rounds."""
        self._verdict({"uploads": "await"})

    def stored(self, source: Storage, directory: str, manifest: Manifest) -> None:
        """Let all ranks verify a checkpoint on storage. Raises Damaged with the first finding."""
        files = [[file.name, file.size, file.sha256] for file in manifest.files]
        finding = self._verdict({"verify": {"root": source.root, "directory": directory, "files": files}})
        if finding:
            raise checkpoint_manifest.Damaged(finding[1])

    def held(self, directory: str, *, whole: bool) -> str:
        """Let ranks open their parts in memory, and return the tier of these parts, "peer" or "ram".

        Return "" if no part is in memory, or, with `whole`, if any part is not.
        """
        step, round = parse_directory(directory) or (0, 0)
        while True:
            sources = self.inventory.sources(step, round)
            if not any(sources) or (whole and not all(sources)):
                return ""
            files = [source and [source.rank, source.address] for source in sources]
            finding = self._verdict({"open": {"step": step, "round": round, "files": files}})
            if not finding:
                return "peer" if any(source and source.address for source in sources) else "ram"
            bad = sources[finding[0]]
            if bad is None:
                return ""
            self.say("CheckpointDamaged", f"{directory}: {finding[1]}; looking for another copy")
            self.inventory.exclude(step, round, bad)

    def _verdict(self, message: dict[str, Any]) -> tuple[int, str] | None:
        self.publish(message)
        self.part.take(self.turn, message)
        verdict = self.part.store.get(f"resume/verdict/{self.turn}").decode()
        return tuple(json.loads(verdict)) if verdict else None


def _lead(storage: Storage, turns: _Turns, asked: Resume, say: Say) -> dict[str, Any]:
    try:
        round = asked.round or lineage.newest_round(storage) + 1
        chosen = _choose(storage, turns, round, asked, say)
        resume = None
        if chosen is not None:
            resume = chosen[1] if chosen[0] == storage.root else "/".join(chosen[:2])
        begin_when_writable(storage, Lineage(round=round, resume=resume, job=asked.job), say)
        root, directory, tier = chosen or (None, None, "")
        outcome = {"round": round, "root": root, "directory": directory, "tier": tier}
    except TrainmasterError as error:
        outcome = {"error": type(error).__name__, "message": str(error)}
    except (checkpoint_manifest.Damaged, OSError) as error:
        outcome = {"error": "ConfigError", "message": f"checkpoint folder {storage.root} can't be used: {error}"}
    turns.publish({"outcome": outcome})
    return outcome


def _choose(storage: Storage, turns: _Turns, round: int, asked: Resume, say: Say) -> tuple[str, str, str] | None:
    """Return (root, directory, tier) of the newest candidate that all ranks find undamaged, or None.

    Nobody waits for uploads if memory has all parts of the newest candidate, and no upload is of a newer step. They are
    completed beside the new round, and count (`lineage.counts`).
    """
    held = turns.inventory.directories()
    newest = next(iter(lineage.candidates(storage, round, asked.job, asked.resume, held)), "")
    if newest in held and _step(newest) >= turns.inventory.uploads_step:
        tier, comes_late = _held_by_all(turns, asked, newest)
        if tier and not comes_late:
            return storage.root, newest, tier
    turns.await_uploads()
    return _choose_after_uploads(storage, turns, round, asked, say)


def _held_by_all(turns: _Turns, asked: Resume, directory: str) -> tuple[str, bool]:
    """Return (tier of a checkpoint of which memory has all parts, or "", whether it was made with samples to skip)."""
    tier = turns.held(directory, whole=True)
    opened = turns.part.opened
    if not tier or opened is None:
        return tier, False
    asked.check(opened.manifest, directory)
    return tier, asked.comes_late(opened.manifest)


def _choose_after_uploads(
    storage: Storage, turns: _Turns, round: int, asked: Resume, say: Say
) -> tuple[str, str, str] | None:
    """Return what `_choose` does, when no upload of an earlier round is under way."""
    held = turns.inventory.directories()
    found = lineage.candidates(storage, round, asked.job, asked.resume, held)
    damaged, late = [], []
    chosen = None
    for candidate in found:
        root, directory = _resolve(storage, candidate)
        source = open_storage(root)
        try:
            tier, comes_late = _held_by_all(turns, asked, directory) if candidate in held else ("", False)
            if comes_late:
                late.append(candidate)
                continue
            if tier:
                chosen = root, directory, tier
                break
            # Its last uploader may have died between the last receipt and the manifest.
            incomplete = MANIFEST not in source.list(directory)
            if incomplete and candidate == directory and checkpoint_manifest.commit(source, directory) is None:
                continue
            manifest = checkpoint_manifest.read_manifest(source, directory)
            asked.check(manifest, f"{root}/{directory}")
            if asked.comes_late(manifest):
                late.append(candidate)
                continue
            turns.stored(source, directory, manifest)
            if candidate in held:
                turns.held(directory, whole=False)
            chosen = root, directory, "storage"
            break
        except (checkpoint_manifest.Damaged, OSError) as error:
            if candidate == asked.resume:
                raise ConfigError(f"checkpoint.resume: {candidate} can't be used: {error}") from None
            damaged.append(candidate)
            say("CheckpointDamaged", f"{candidate} is not used: {error}")
    if damaged:
        instead = chosen[1] if chosen else "the beginning, because no other checkpoint is left"
        say("CheckpointFallback", f"resuming from {instead} instead of {damaged[0]}")
    if late and chosen is None:
        say(
            "SamplesNotSkipped",
            f"resuming from {late[0]}, which was trained on samples to skip, because there is no earlier checkpoint",
        )
        return _choose_after_uploads(storage, turns, round, replace(asked, skipped=()), say)
    return chosen


def _step(directory: str) -> int:
    return (parse_directory(directory) or (0, 0))[0]


def _follow(part: _Part) -> dict[str, Any]:
    turn = 0
    while True:
        turn += 1
        message = json.loads(part.store.get(f"resume/turn/{turn}"))
        if "outcome" in message:
            outcome: dict[str, Any] = message["outcome"]
            return outcome
        part.take(turn, message)


def _resolve(storage: Storage, candidate: str) -> tuple[str, str]:
    """Return (root, directory) of a candidate."""
    if parse_directory(candidate) is not None:
        return storage.root, candidate
    try:
        return locate(candidate)
    except ConfigError as error:
        raise ConfigError(f"checkpoint.resume: {error}") from None


def locate(path: str) -> tuple[str, str]:
    """Return (root, directory) of the checkpoint at `path`, or of the newest one if `path` is a folder of checkpoints.

    Raises ConfigError if there is none.
    """
    root, directory = os.path.split(path.rstrip("/"))
    if parse_directory(directory) is not None:
        return open_storage(root).root, directory
    whole = open_storage(path)
    try:
        found = lineage.chain(lineage.read_lineages(whole), whole.list())
    except checkpoint_manifest.Damaged as error:
        raise ConfigError(f"{path} can't be used: {error}") from None
    for name in found:
        if MANIFEST in whole.list(name):
            return whole.root, name
    raise ConfigError(f"{path} is neither a checkpoint (step-N.rM with a {MANIFEST}) nor a folder with checkpoints")
