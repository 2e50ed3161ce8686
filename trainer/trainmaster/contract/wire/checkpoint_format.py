"""Formats on checkpoint storage: shard receipts, the manifest, and the lineage of rounds.

    step-<N>.r<round>/rank-00000.safetensors    chunks of tensors that rank 0 owns
                      receipt-00000.json        written when that file is durable
                      manifest.json             all receipts merged, written last: no manifest, no checkpoint
    lineage/round-<r>.json                      created exclusively: which checkpoint round r resumed from

Whatever needs a checkpoint reads its manifest and nothing else. All offsets and sizes are bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from trainmaster.contract.wire.message_codec import PROTOCOL

MANIFEST = "manifest.json"
LINEAGE = "lineage"

_DIRECTORY = re.compile(r"step-(\d+)\.r(\d+)")
_ROUND = re.compile(r"round-(\d+)\.json")
_RECEIPT = re.compile(r"receipt-(\d{5,})\.json")


@dataclass(frozen=True)
class Chunk:
    """A block of a tensor: its shape and its offset in the whole tensor, and the bytes [start, end) of `file` it lies
    in."""

    file: str
    offset: list[int]
    shape: list[int]
    start: int
    end: int


@dataclass(frozen=True)
class TensorIndex:
    """A tensor of a checkpoint: its dtype (as in safetensors), its whole shape, and the chunks that cover it."""

    dtype: str
    shape: list[int]
    chunks: list[Chunk]


@dataclass(frozen=True)
class ShardFile:
    """A file of a checkpoint, its size in bytes, and its checksum."""

    name: str
    size: int
    sha256: str = ""
    checksum: str = ""  # "crc32:…": of files in RAM, instead of sha256


@dataclass(frozen=True)
class Receipt:
    """A statement that one rank's file is durable, with an index of what the file holds.

    `common` is the part that is the same on all ranks; the manifest takes it from the receipt of rank 0.
    """

    step: int
    round: int
    rank: int
    world_size: int
    file: ShardFile
    tensors: dict[str, TensorIndex]
    values: dict[str, Any] = field(default_factory=dict)  # state that isn't a tensor, as tagged JSON
    common: dict[str, Any] = field(default_factory=dict)  # {mesh, data, rng, batch, numbers, losses, model, …}
    shard: str = ""  # of files in RAM: which part of the model; files with equal values are replicas
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class Manifest:
    """The index of a complete checkpoint: all receipts merged into one."""

    step: int
    round: int
    world_size: int
    files: list[ShardFile]
    tensors: dict[str, TensorIndex]
    values: dict[str, Any] = field(default_factory=dict)
    mesh: dict[str, int] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)  # {kind, version, consumed, skipped, fingerprint, source}
    rng: dict[str, Any] = field(default_factory=dict)  # {kind: keyed, seed} or {kind: per-rank}
    config_sha256: str = ""
    batch: dict[str, int] = field(default_factory=dict)  # {global, micro, accumulation}
    numbers: dict[str, Any] = field(default_factory=dict)  # metrics of this step, unless they were written before
    losses: list[float] = field(default_factory=list)  # losses of the steps before, if a rule on divergence needs them
    norms: list[float] = field(default_factory=list)  # norms of the gradients of the steps before, if a rule needs them
    model: dict[str, Any] = field(default_factory=dict)  # {name, options}, all of them; empty: a model of one's own
    optimizer: str = ""  # its name; "": one's own, or of a trainer that didn't tell
    scaler: dict[str, Any] = field(default_factory=dict)  # {scale, steps} of fp16's loss scale
    noise: dict[str, float] = field(default_factory=dict)  # {signal, noise, weight} of the gradient noise scale
    evaluation: dict[str, Any] = field(
        default_factory=dict
    )  # what `trainmaster.train.measures.early_stopping` says; {}: there is none
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class Lineage:
    """A record of the checkpoint that round `round` of job `job` resumed from.

    `resume` is the name of a checkpoint directory on the same storage, an absolute path, or null if the round began
    without a checkpoint.
    """

    round: int
    resume: str | None
    job: str = ""
    protocol: int = PROTOCOL


def directory_name(step: int, round: int) -> str:
    """Return the name of the directory of the checkpoint that `round` saved after `step`."""
    return f"step-{step}.r{round}"


def parse_directory(name: str) -> tuple[int, int] | None:
    """Return (step, round) from the name of a checkpoint directory, or None for any other name."""
    match = _DIRECTORY.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def shard_name(rank: int) -> str:
    """Return the name of the file with the tensors of `rank`."""
    return f"rank-{rank:05d}.safetensors"


def receipt_name(rank: int) -> str:
    """Return the name of the receipt of `rank`."""
    return f"receipt-{rank:05d}.json"


def parse_receipt(name: str) -> int | None:
    """Return the rank from the name of a receipt, or None for any other name."""
    match = _RECEIPT.fullmatch(name)
    return int(match[1]) if match else None


def lineage_path(round: int) -> str:
    """Return the path of the lineage file of `round`, relative to the checkpoint storage."""
    return f"{LINEAGE}/round-{round}.json"


def parse_lineage(name: str) -> int | None:
    """Return the round from the name of a lineage file, or None for any other name."""
    match = _ROUND.fullmatch(name)
    return int(match[1]) if match else None
