"""The whole local state of a rank, whose layout in memory is planned once, so that each save is only a copy.

A save to storage leaves out what other ranks save. This state leaves out nothing, so that it can replace any rank that
is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trainmaster.checkpoint.state import capture, shard_identity
from trainmaster.checkpoint.state.file_layout import Layout, Piece, lay_out
from trainmaster.checkpoint.state.save_shares import local_pieces


class LocalState:
    """The part of the named objects that this rank holds.

    The tensors of modules and optimizers stay the same objects from step to step, so they are looked up once, between
    two steps; within a step FSDP has replaced them. Buffers, and the state of all other objects, are copied between
    steps, because a step changes them before its optimizer runs.
    """

    def __init__(self, objects: Mapping[str, Any], rank: int) -> None:
        self._objects, self._rank = objects, rank
        self._names = capture.parameter_names(objects)
        self._others = {n: o for n, o in objects.items() if capture.is_other(o)}
        self._sharded = {n: o for n, o in objects.items() if capture.is_sharded(o)}
        self._modules = {n: o for n, o in objects.items() if isinstance(o, nn.Module)}
        self._optimizers = {n: o for n, o in objects.items() if capture.is_optimizer(o)}
        self._pieces: list[Piece] = []
        self._values: dict[str, Any] = {}
        self._known: list[tuple[Mapping[Any, Any], Any, torch.Tensor]] = []
        self._states: list[tuple[Any, int | None]] = []
        self._layout: Layout | None = None
        self._buffers: list[tuple[str, Mapping[str, Any], str]] = []
        self._loose = capture.Snapshot()
        self._shard = ""

    def boundary(self) -> None:
        """Look up the tensors and copy the state outside of them. Call it between two steps."""
        if not self._stands():
            self._plan()
        self._loose = capture.Snapshot()
        if self._others:
            capture.capture_others(self._loose, self._others, self._rank)
        tensors = self._loose.tensors
        tensors.update({name: place[key] for name, place, key in self._buffers if place.get(key) is not None})
        with torch.no_grad():
            self._loose.tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        for name, thing in self._sharded.items():
            self._loose.tensors.update(capture.capture_shards(name, thing))  # which stay until the next boundary

    def layout(self) -> Layout | None:
        """Return how the state of the last boundary lies in a file.

        Return None if an optimizer has replaced tensors since then.
        """
        if self._layout is None or not self._same_optimizer_state():
            return None
        if not self._loose.tensors:
            return self._layout
        loose = [piece for name, tensor in self._loose.tensors.items() for piece in local_pieces(name, tensor)]
        behind = lay_out(loose, self._layout)
        aligned = all(start % part.element_size() == 0 for start, _, part in behind.parts)
        return behind if aligned else lay_out([*self._pieces, *loose])

    def values(self) -> dict[str, Any]:
        """Return the state that is not a tensor."""
        snapshot = capture.Snapshot()
        for name, optimizer in self._optimizers.items():
            capture.capture_optimizer_values(snapshot, name, optimizer, self._names)
        return {**self._values, **snapshot.values, **self._loose.values}

    def shard(self) -> str:
        """Return a name for the part of the model that this rank holds. Ranks with equal names are replicas of each
        other.

        With islands the name is "<what>+<island>"; if no rank of the same island has the part, that of another island
        is used.
        """
        if not self._shard:
            self._shard = shard_identity.identify(self._objects, self._modules, self._sharded, self._others, self._rank)
        return self._shard

    def _plan(self) -> None:
        snapshot = capture.capture({**self._modules, **self._optimizers}, self._rank)
        self._buffers = [place for name, module in self._modules.items() for place in capture.buffers(name, module)]
        mutable = {name for name, _, _ in self._buffers}
        self._pieces = [
            piece for n, tensor in snapshot.tensors.items() if n not in mutable for piece in local_pieces(n, tensor)
        ]
        groups = {f"{name}.param_groups" for name in self._optimizers}
        states = tuple(f"{name}.state." for name in self._optimizers)
        self._values = {k: v for k, v in snapshot.values.items() if k not in groups and not k.startswith(states)}
        self._layout = lay_out(self._pieces)
        self._known = [
            (part._parameters, key, parameter)
            for module in self._modules.values()
            for part in capture.unwrap(module).modules()
            for key, parameter in part._parameters.items()
            if parameter is not None
        ]
        self._states = []
        for optimizer in self._optimizers.values():
            self._states.append((optimizer, _tensors_in(optimizer)))
            self._known += [
                (kinds, kind, value)
                for kinds in optimizer.state.values()
                for kind, value in kinds.items()
                if isinstance(value, torch.Tensor)
            ]

    def _stands(self) -> bool:
        """Return True if the planned tensors are still those in use. It cannot be called within a step."""
        return (
            self._layout is not None
            and not self._values  # a module's own words may be others each time
            and all(count is not None and _tensors_in(optimizer) == count for optimizer, count in self._states)
            and all(place.get(key) is tensor for place, key, tensor in self._known)
        )

    def _same_optimizer_state(self) -> bool:
        return all(
            place.get(key) is tensor for place, key, tensor in self._known if not isinstance(tensor, nn.Parameter)
        )


def _tensors_in(optimizer: Any) -> int | None:
    """Return the number of tensors in an optimizer's state, or None if it has lists or dicts, whose tensors may be
    others after each step."""
    values = [value for kinds in optimizer.state.values() for value in kinds.values()]
    if any(isinstance(value, (list, tuple, dict)) for value in values):
        return None
    return sum(isinstance(value, torch.Tensor) for value in values)
