"""Names in checkpoints of islands, and how worlds with other islands, or none, read them.

A tensor that island k has for itself has a name that begins with `islands.<k>.`; `model` is what all islands share. So
a world without islands finds its model under the usual name. A rank that has no part of its own in a checkpoint begins
with the shared model and with the optimizer of the first island that has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from trainmaster.contract.wire.checkpoint_format import Manifest

_ISLAND = re.compile(r"islands\.\d+\.")


def prefix(island: int) -> str:
    """Return the prefix of names that island number `island` has for itself."""
    return f"islands.{island}."


def island_of(name: str) -> str:
    """Return the island prefix of a name, or "" if all islands share the tensor."""
    found = _ISLAND.match(name)
    return found.group() if found else ""


def common_name(name: str) -> str:
    """Return a name without its island prefix, so that it is the same for all islands."""
    return _ISLAND.sub("", name)


def as_wanted(manifest: Manifest, objects: Iterable[str]) -> Manifest:
    """Return `manifest` with the names that a rank with these objects looks for."""
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
    """Return the name of optimizer state, and of the parameter within it, moved from one island to another."""
    if donor:
        return name.replace(donor, wanted)
    return wanted + re.sub(r"(^|\.state\.)model\.", rf"\1{wanted}model.", name)
