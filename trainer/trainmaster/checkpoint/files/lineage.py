"""Which checkpoints of a storage count: those on the chain of lineage files. Standard library only.

Before a round loads anything, it creates lineage/round-<r>.json exclusively; this file names the one checkpoint that
the round resumes from. A checkpoint counts only if it lies on the chain that starts at the newest lineage file. So a
checkpoint that an older world writes late is never used, whenever it is completed, unless it is older than the one that
the next world resumed from.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from trainmaster.checkpoint.files.checkpoint_manifest import Damaged
from trainmaster.checkpoint.files.storage import Storage
from trainmaster.contract.wire.checkpoint_format import LINEAGE, Lineage, lineage_path, parse_directory, parse_lineage
from trainmaster.contract.wire.message_codec import WireError, decode, encode
from trainmaster.errors import ConfigError, Fenced


def chain(lineages: Mapping[int, Lineage], directories: Iterable[str]) -> list[str]:
    """Return those of `directories` that lie on the chain of the newest lineage, newest first.

    The newest round contributes its checkpoints of steps after the one that it resumed from, and of that step, too, if
    only memory had it. The round that this checkpoint belonged to contributes its checkpoints up to that step, and so
    on. If a round resumed from an absolute path, this path is the last element. Raises Damaged if a round resumed from
    a round that is not older.
    """
    by_round: dict[int, list[tuple[int, str]]] = {}
    present = set()
    for name in directories:
        parsed = parse_directory(name)
        if parsed:
            by_round.setdefault(parsed[1], []).append((parsed[0], name))
            present.add(parsed)
    found: list[str] = []
    round, limit = max(lineages, default=0), None
    while round in lineages:
        resume = lineages[round].resume
        base = parse_directory(os.path.basename(resume)) if resume else None
        first = base[0] + (base in present) if base else 0
        steps = sorted(by_round.get(round, []), reverse=True)
        found += [name for step, name in steps if step >= first and (limit is None or step <= limit)]
        if resume is None:
            break
        if base is None or os.path.isabs(resume):
            found.append(resume)
            break
        if base[1] >= round:
            raise Damaged(f"lineage of round {round} resumes from {resume}, which isn't older")
        limit, round = base
    return found


def read_lineages(storage: Storage) -> dict[int, Lineage]:
    """Return all lineage files by round. Raises Damaged for a file that cannot be decoded."""
    found = {}
    for name in storage.list(LINEAGE):
        round = parse_lineage(name)
        if round is not None:
            try:
                found[round] = decode(Lineage, storage.read(lineage_path(round)))
            except WireError as error:
                raise Damaged(f"{storage.root}/{lineage_path(round)}: {error}") from None
    return found


def newest_round(storage: Storage) -> int:
    """Return the round that owns the storage, or 0 if none does."""
    rounds = [parse_lineage(name) or 0 for name in storage.list(LINEAGE)]
    return max(rounds, default=0)


def counts(storage: Storage, directory: str) -> bool:
    """Return True if a checkpoint that is completed now counts: its round owns the storage, or the newest rounds have
    resumed from a later step of its round. Raises Damaged for a lineage file that cannot be decoded."""
    return bool(chain(read_lineages(storage), [directory]))


def begin(storage: Storage, lineage: Lineage) -> None:
    """Take the storage for the round of `lineage`. Raises Fenced if this round or a newer one has taken it."""
    newest = newest_round(storage)
    if newest > lineage.round or not storage.create_exclusive(lineage_path(lineage.round), encode(lineage)):
        raise Fenced(f"round {lineage.round} can't take {storage.root}: round {max(newest, lineage.round)} has it")


def candidates(storage: Storage, round: int, job: str, resume: str, held: Iterable[str] = ()) -> list[str]:
    """Return where round `round` may resume, best first: checkpoints of `storage`, of memory (`held`), or absolute
    paths.

    `resume` applies to a job's first round only; later rounds continue from what the job itself has saved. Raises
    Fenced if this or a newer round owns the storage, and ConfigError if another job does.
    """
    lineages = read_lineages(storage)
    newest = max(lineages, default=0)
    if lineages and lineages[newest].job != job:
        owner = lineages[newest].job or "one without an operator"
        checkpoints = chain(lineages, storage.list())
        newest_path = f"{storage.root}/{checkpoints[0]}" if checkpoints else ""
        hint = f" (with checkpoint.resume: {newest_path} to start from its newest)" if checkpoints else ""
        raise ConfigError(
            f"checkpoint folder {storage.root} belongs to another job ({owner}); use an empty folder{hint}"
        )
    if newest >= round:
        raise Fenced(f"round {round} can't take {storage.root}: round {newest} has it")
    if lineages or resume == "Auto":
        return chain(lineages, {*storage.list(), *held})
    return [] if resume == "Never" else [resume]
