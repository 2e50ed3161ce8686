"""Checkpoints of islands, and of worlds with others.

A tensor's name begins with `islands.<k>.` where island k has it for itself; `model` is what all have in common. So a
world without islands finds its model where it always is. Whoever has no part of its own in a checkpoint begins with
the model and with the optimizer of the first island that has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from trainmaster.contract.wire.checkpoint_format import Manifest

_ISLAND = re.compile(r"islands\.\d+\.")


def prefix(island: int) -> str:
    """Return how the names of tensors begin that one island has for itself."""
    return f"islands.{island}."


def island_of(name: str) -> str:
    """The prefix of a name; "" if no island has it for itself."""
    found = _ISLAND.match(name)
    return found.group() if found else ""


def common_name(name: str) -> str:
    """A name without the islands that it tells of: the same for all of them."""
    return _ISLAND.sub("", name)


def as_wanted(manifest: Manifest, objects: Iterable[str]) -> Manifest:
    """`manifest` with the names that a rank with these objects looks for."""
    wanted = max(map(island_of, objects), default="")
    there = sorted({island_of(name) for name in manifest.tensors} - {""})
    if wanted in there or (not wanted and not there):
        return manifest
    donor = there[0] if there else ""
    tensors, values = {**manifest.tensors}, {**manifest.values}
    for name, tensor in manifest.tensors.items():
        if wanted and name.startswith("model."):
            tensors[wanted + name] = tensor
        elif name.startswith(f"{donor}optimizer."):
            tensors[_renamed(name, donor, wanted)] = tensor
    for name, value in manifest.values.items():
        if name == f"{donor}optimizer.param_groups":
            values[_renamed(name, donor, wanted)] = [
                {**group, "params": [_renamed(p, donor, wanted) for p in group["params"]]} for group in value
            ]
        elif name.startswith(f"{donor}optimizer."):
            values[_renamed(name, donor, wanted)] = value
    return replace(manifest, tensors=tensors, values=values)


def _renamed(name: str, donor: str, wanted: str) -> str:
    """Of an optimizer's state: its own name, and that of the parameter in it."""
    if donor:
        return name.replace(donor, wanted)
    return wanted + re.sub(r"(^|\.state\.)model\.", rf"\1{wanted}model.", name)
