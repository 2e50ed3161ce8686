"""What each state of a run is after each step, as digests: `trainmaster prove` compares them between two runs.

A line for each step in <output>/digests/rank-<r>.jsonl, only where TRAINMASTER_DIGESTS asks for it:

    {"step", "round", "at": "restored" or "after", "held": {state: digest}, "others": {variable: [its type, digest]}}

`held` is what a checkpoint keeps. `others` is what else has a state where a user's loop runs, and isn't kept: a null
digest means that it has a position nobody can ask for.
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
from trainmaster.checkpoint.state.save import local_pieces
from trainmaster.contract.wire import environment
from trainmaster.errors import ConfigError
from trainmaster.rank.reporter import Reporter

FOLDER = "digests"
_INSTALLED = ("site-packages", "dist-packages")
_OURS = str(Path(trainmaster.__file__).parent)


class Probe:
    """Nothing, unless the environment asks for it."""

    def __init__(self, objects: Mapping[str, Any], rank: int, reporter: Reporter) -> None:
        self._objects, self._rank, self._round = objects, rank, reporter.round
        self._file: Path | None = None
        if os.environ.get(environment.DIGESTS) == "1" and reporter.output is not None:
            self._file = reporter.output / FOLDER / f"rank-{rank:05d}.jsonl"
            self._file.parent.mkdir(parents=True, exist_ok=True)

    def note(self, step: int, at: str, frame: types.FrameType | None = None) -> None:
        """`frame`: the innermost of the user's loop."""
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
        """After each save. A kill in the next step has to find it whole: what begins anew forgets nothing."""
        if self._file is not None:
            drain()


def digests(objects: Mapping[str, Any], rank: int) -> dict[str, str]:
    """Of each part of this rank's share: a module, an optimizer's state and its groups, each entry of the rest."""
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
    """(variable, (type, digest)) of what has a state in the user's frames, and isn't among `objects`."""
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
    """Of the frames that run the user's own files, the innermost first, and of the modules that these files are."""
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
    """(its digest); (None,) for a position nobody can ask for; None for what has no state."""
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
    """A DataLoader or an iterator of one. By name: whoever has none needn't pay for the import."""
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
    """Numbers of numpy's states that no JSON number holds."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return str(value) if isinstance(value, int) else value
