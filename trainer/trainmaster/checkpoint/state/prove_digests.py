"""Digests of all states of a run after each step. `trainmaster prove` compares them between two runs.

If TRAINMASTER_DIGESTS is set, each step adds a line to <output>/digests/rank-<r>.jsonl:

    {"step", "round", "at": "restored" or "after", "held": {state: digest}, "others": {variable: [its type, digest]}}

`held` is the state that a checkpoint keeps. `others` are variables of the user's loop that have a state which no
checkpoint keeps; the digest is null if an object has a position that cannot be read.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import trainmaster
from trainmaster.checkpoint.state import capture
from trainmaster.checkpoint.state import tagged_values as tagged
from trainmaster.checkpoint.state.save_shares import local_pieces
from trainmaster.contract.wire import environment
from trainmaster.errors import ConfigError
from trainmaster.rank.reporter import Reporter

FOLDER = "digests"
_INSTALLED = ("site-packages", "dist-packages")
_OURS = str(Path(trainmaster.__file__).parent)


class Probe:
    """Writes the digests of a rank. It does nothing unless the environment variable asks for it."""

    def __init__(self, objects: Mapping[str, Any], rank: int, reporter: Reporter) -> None:
        self._objects, self._rank, self._round = objects, rank, reporter.round
        self._file: Path | None = None
        if os.environ.get(environment.DIGESTS) == "1" and reporter.output is not None:
            self._file = reporter.output / FOLDER / f"rank-{rank:05d}.jsonl"
            self._file.parent.mkdir(parents=True, exist_ok=True)

    def note(self, step: int, at: str, frame: types.FrameType | None = None) -> None:
        """Write the digests of a step. `frame` is the innermost frame of the user's loop."""
        if self._file is None:
            return
        line = {
            "step": step,
            "round": self._round,
            "at": at,
            "held": digests(self._objects, self._rank),
            "others": dict(others(frame, self._objects)) if frame is not None else {},
        }
        with open(self._file, "a") as file:
            file.write(json.dumps(line) + "\n")

    def saved(self, drain: Callable[[], None]) -> None:
        """Wait until a save is complete. Call it after each save, so that a kill in the next step finds the save
        complete."""
        if self._file is not None:
            drain()


def digests(objects: Mapping[str, Any], rank: int) -> dict[str, str]:
    """Return a digest of each part of this rank's state: each module, and each entry of every other object."""
    with torch.no_grad():
        snapshot = capture.capture(objects, rank)
    own = f"rank.{rank}."
    parts: dict[str, Any] = {}

    def part(key: str) -> Any:
        name, *rest = key.removeprefix(own).split(".")
        whole = isinstance(objects.get(name), nn.Module) or not rest
        return parts.setdefault(name if whole else f"{name}.{rest[0]}", hashlib.sha256())

    for key, tensor in sorted(snapshot.tensors.items()):
        for piece in local_pieces(key, tensor):
            _add(part(key), piece.key, piece.data)
    for key, value in sorted(snapshot.values.items()):
        entries = value.items() if isinstance(value, dict) and "$" not in value and key.count(".") in (0, 2) else None
        for name, entry in sorted(entries) if entries is not None else [("", value)]:
            place = f"{key}.{name}" if name else key
            part(place).update(f"{place} {json.dumps(entry, sort_keys=True)}\n".encode())
    return {name: digest.hexdigest()[:16] for name, digest in sorted(parts.items())}


def others(frame: types.FrameType, objects: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, str | None]]]:
    """Yield (variable, (type, digest)) of objects that have a state in the user's frames and are not among
    `objects`."""
    known = {id(part) for thing in objects.values() for part in _parts(thing)}
    seen: set[int] = set()
    for name, thing in _variables(frame):
        if id(thing) not in known and id(thing) not in seen and (found := _stateful(thing)) is not None:
            seen.add(id(thing))
            yield name, (type(thing).__name__, found[0])


def _parts(thing: Any) -> Iterator[Any]:
    yield thing
    if isinstance(thing, nn.Module):
        yield from thing.modules()


def _variables(frame: types.FrameType | None) -> Iterator[tuple[str, Any]]:
    """Yield the variables of frames in the user's own files, innermost first, and then of the modules of these
    files."""
    modules = []
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(("<", _OURS, sys.prefix)) and not any(part in file for part in _INSTALLED):
            for name, value in list(frame.f_locals.items()):
                yield name, value
                if name == "self":
                    yield from ((f"self.{key}", part) for key, part in list(getattr(value, "__dict__", {}).items()))
            modules.append(frame.f_globals)
        frame = frame.f_back
    for module in modules:
        yield from list(module.items())


def _stateful(thing: Any) -> tuple[str | None] | None:
    """Return (digest,) of an object with a state, (None,) if its position cannot be read, or None without a state."""
    if isinstance(thing, (type, types.ModuleType, types.FunctionType)):
        return None
    content: Any
    try:
        if isinstance(thing, torch.Generator):
            content = thing.get_state()
        elif isinstance(thing, random.Random):
            content = thing.getstate()
        elif type(thing).__module__.startswith("numpy.random") and hasattr(thing, "bit_generator"):
            content = _plain(thing.bit_generator.state)
        elif type(thing).__module__.startswith("numpy.random") and hasattr(thing, "get_state"):
            content = thing.get_state()
        elif callable(getattr(thing, "state_dict", None)):
            content = thing.state_dict()
        elif isinstance(thing, types.GeneratorType) or _loads(thing):
            return (None,)
        else:
            return None
        return (_digest(content),)
    except (ConfigError, RuntimeError, TypeError, ValueError):
        return (None,)


def _loads(thing: Any) -> bool:
    """Return True for a DataLoader or an iterator of one. The class name is compared, which saves an import."""
    return any(kind.__name__ in ("DataLoader", "_BaseDataLoaderIter") for kind in type(thing).__mro__)


def _digest(content: Any) -> str:
    tensors: dict[str, torch.Tensor] = {}
    packed = tagged.pack(content, "", tensors)
    digest = hashlib.sha256(json.dumps(packed, sort_keys=True).encode())
    for key, tensor in sorted(tensors.items()):
        for piece in local_pieces(key, tensor):
            _add(digest, piece.key, piece.data)
    return digest.hexdigest()[:16]


def _add(digest: Any, key: str, tensor: torch.Tensor) -> None:
    data = tensor.detach().cpu().contiguous()
    digest.update(f"{key} {data.dtype} {list(data.shape)}\n".encode())
    digest.update(data.reshape(-1).view(torch.uint8).numpy().data if data.numel() else b"")


def _plain(value: Any) -> Any:
    """Return numpy's state with integers as strings, because JSON numbers cannot hold all of them."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return str(value) if isinstance(value, int) else value
