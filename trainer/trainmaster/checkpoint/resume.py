"""Where a round resumes: rank 0 proposes, all ranks verify their share of the files, the store tells the verdict."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainmaster.checkpoint import lineage
from trainmaster.checkpoint.storage import Storage, open_storage
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.lineage import MANIFEST, Lineage, Manifest, parse_directory
from trainmaster.errors import ConfigError, Fenced, TrainmasterError

Say = Callable[[str, str], None]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that all ranks have verified."""

    storage: Storage
    directory: str
    manifest: Manifest

    @property
    def path(self) -> str:
        return f"{self.storage.root}/{self.directory}"


@dataclass(frozen=True)
class Resume:
    """What a round is told: which round, of which job, and `resume` of the job's spec."""

    round: int  # 0: no operator numbers the rounds, so the next free number is taken
    job: str = ""
    resume: str = "Auto"

    @classmethod
    def from_environment(cls) -> Resume:
        env = os.environ
        return cls(
            round=int(env.get(environment.ROUND) or 0),
            job=env.get(environment.JOB_UID, ""),
            resume=env.get(environment.RESUME) or "Auto",
        )


def agree(
    storage: Storage, store: Any, rank: int, world_size: int, asked: Resume, say: Say
) -> tuple[int, Checkpoint | None]:
    """(round, where it resumes; None: from the start), the same on all ranks; the round's lineage then exists.

    `store` is a torch store that all ranks share. All ranks call this when no upload of an earlier round is under
    way on their machine. `say(reason, message)` tells people of damaged checkpoints. Raises ConfigError, Fenced.
    """
    if store.add("resume/ready", 1) == world_size:
        store.set("resume/all-ready", "1")
    if rank == 0:
        store.get("resume/all-ready")
        outcome = _lead(storage, _Turns(store, world_size), asked, say)
    else:
        outcome = _follow(store, rank, world_size)
    if "error" in outcome:
        raise (Fenced if outcome["error"] == "Fenced" else ConfigError)(outcome["message"])
    if outcome["root"] is None:
        return outcome["round"], None
    source, directory = open_storage(outcome["root"]), outcome["directory"]
    return outcome["round"], Checkpoint(source, directory, lineage.read_manifest(source, directory))


class _Turns:
    """What rank 0 says to the others, in turn: checkpoints to verify, at last the outcome."""

    def __init__(self, store: Any, world_size: int) -> None:
        self.store, self.world_size, self.turn = store, world_size, 0

    def publish(self, message: dict[str, Any]) -> None:
        self.turn += 1
        self.store.set(f"resume/turn/{self.turn}", json.dumps(message))

    def verdict(self, source: Storage, directory: str, manifest: Manifest) -> None:
        """Let all ranks verify a checkpoint. Raises Damaged with the first finding."""
        files = [[file.name, file.size, file.sha256] for file in manifest.files]
        self.publish({"verify": {"root": source.root, "directory": directory, "files": files}})
        _verify_share(self.store, self.turn, 0, self.world_size, source, directory, files)
        finding = self.store.get(f"resume/verdict/{self.turn}").decode()
        if finding:
            raise lineage.Damaged(finding)


def _lead(storage: Storage, turns: _Turns, asked: Resume, say: Say) -> dict[str, Any]:
    try:
        round = asked.round or lineage.newest_round(storage) + 1
        chosen = _choose(storage, turns, round, asked, say)
        resume = None
        if chosen is not None:
            resume = chosen[1] if chosen[0] == storage.root else "/".join(chosen)
        lineage.begin(storage, Lineage(round=round, resume=resume, job=asked.job))
        outcome = {"round": round, "root": chosen and chosen[0], "directory": chosen and chosen[1]}
    except TrainmasterError as error:
        outcome = {"error": type(error).__name__, "message": str(error)}
    except (lineage.Damaged, OSError) as error:
        outcome = {"error": "ConfigError", "message": f"checkpoint folder {storage.root} can't be used: {error}"}
    turns.publish({"outcome": outcome})
    return outcome


def _choose(storage: Storage, turns: _Turns, round: int, asked: Resume, say: Say) -> tuple[str, str] | None:
    """(root, directory) of the newest candidate that all ranks find good."""
    found = lineage.candidates(storage, round, asked.job, asked.resume)
    damaged = []
    chosen = None
    for candidate in found:
        root, directory = _resolve(storage, candidate)
        source = open_storage(root)
        try:
            # Its last uploader may have died between the last receipt and the manifest.
            incomplete = MANIFEST not in source.list(directory)
            if incomplete and candidate == directory and lineage.commit(source, directory) is None:
                continue
            turns.verdict(source, directory, lineage.read_manifest(source, directory))
            chosen = root, directory
            break
        except (lineage.Damaged, OSError) as error:
            if candidate == asked.resume:
                raise ConfigError(f"checkpoint.resume: {candidate} can't be used: {error}") from None
            damaged.append(candidate)
            say("CheckpointDamaged", f"{candidate} is not used: {error}")
    if damaged:
        instead = chosen[1] if chosen else "the beginning, for no other checkpoint is left"
        say("CheckpointFallback", f"resuming from {instead} instead of {damaged[0]}")
    return chosen


def _follow(store: Any, rank: int, world_size: int) -> dict[str, Any]:
    turn = 0
    while True:
        turn += 1
        message = json.loads(store.get(f"resume/turn/{turn}"))
        if "outcome" in message:
            outcome: dict[str, Any] = message["outcome"]
            return outcome
        asked = message["verify"]
        _verify_share(store, turn, rank, world_size, open_storage(asked["root"]), asked["directory"], asked["files"])


def _verify_share(
    store: Any, turn: int, rank: int, world_size: int, source: Storage, directory: str, files: list[Any]
) -> None:
    """Check every world_size-th file; the last rank that finds nothing says so (an empty verdict)."""
    try:
        lineage.verify(source, directory, [tuple(file) for file in files[rank::world_size]])
    except lineage.Damaged as error:
        store.set(f"resume/verdict/{turn}", str(error))
        return
    if store.add(f"resume/verified/{turn}", 1) == world_size:
        store.set(f"resume/verdict/{turn}", "")


def _resolve(storage: Storage, candidate: str) -> tuple[str, str]:
    """(root, directory). A path of a person's may be a checkpoint or a folder of checkpoints: then its newest."""
    if parse_directory(candidate) is not None:
        return storage.root, candidate
    root, directory = os.path.split(candidate.rstrip("/"))
    if parse_directory(directory) is not None:
        return open_storage(root).root, directory
    whole = open_storage(candidate)
    try:
        found = lineage.chain(lineage.read_lineages(whole), whole.list())
    except lineage.Damaged as error:
        raise ConfigError(f"checkpoint.resume: {candidate} can't be used: {error}") from None
    for name in found:
        if MANIFEST in whole.list(name):
            return whole.root, name
    raise ConfigError(
        f"checkpoint.resume: {candidate} is neither a checkpoint (step-N.rM with a {MANIFEST}) nor a folder with any"
    )
