"""Which checkpoints stay on storage, and which are removed once a newer one is complete. Standard library only."""

from __future__ import annotations

from trainmaster.checkpoint.files import checkpoint_manifest, lineage
from trainmaster.checkpoint.files.storage import Storage
from trainmaster.contract.wire.checkpoint_format import MANIFEST, parse_directory

ABANDONED = "abandoned.json"
"""A file in the directory of a checkpoint that can't be completed, because the shard of a rank was given up."""


def retain(storage: Storage, keep: int, newest: str) -> list[str]:
    """Keep the `keep` newest complete checkpoints of the chain, remove older ones, and return their names.

    With `keep` 0 nothing is removed. The checkpoint that the newest manifest names as the best is kept, too, complete
    or not. Checkpoints outside of the chain are removed when a newer one is complete. An incomplete one on the chain is
    removed when `keep` newer ones are complete. Until then its upload may be under way, even that of an earlier round.
    """
    committed = parse_directory(newest)
    if keep < 1 or committed is None:
        return []
    names = [name for name in storage.list() if parse_directory(name)]
    complete = {name for name in names if MANIFEST in storage.list(name)}
    chain = lineage.chain(lineage.read_lineages(storage), names)
    newest_kept = [name for name in chain if name in complete][:keep]
    kept = set(newest_kept)
    if newest not in kept:  # another world has taken over: what to keep is its business
        return []
    oldest = min(step for step, round in map(_parse, kept) if round == committed[1])
    best = checkpoint_manifest.read_manifest(storage, newest).evaluation.get("keep")
    kept |= {name for name in chain if _parse(name)[0] == best and ABANDONED not in storage.list(name)}
    newer = chain[: chain.index(newest_kept[-1])] if len(newest_kept) == keep else chain
    # Uploads that may still be under way.
    kept |= {name for name in newer if name not in complete and ABANDONED not in storage.list(name)}
    gone = []
    for name in names:
        step, round = _parse(name)
        over = step < oldest or (step < committed[0] and ABANDONED in storage.list(name))
        if name not in kept and (round < committed[1] or (round == committed[1] and over)):
            # The manifest goes first, so that a half-removed checkpoint is none.
            storage.remove(f"{name}/{MANIFEST}")
            storage.remove(name)
            gone.append(name)
    return gone


def _parse(name: str) -> tuple[int, int]:
    return parse_directory(name) or (0, 0)
