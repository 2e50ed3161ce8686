"""The state of named objects, set to that of a checkpoint: modules, optimizers, and objects that ranks keep for
themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trainmaster.checkpoint.state import capture
from trainmaster.checkpoint.state import tagged_values as tagged
from trainmaster.checkpoint.state.file_layout import DTYPES
from trainmaster.checkpoint.state.island_names import as_wanted
from trainmaster.checkpoint.state.load_tensors import Source, load_tensors
from trainmaster.contract.wire.checkpoint_format import Manifest
from trainmaster.errors import ConfigError


def restore(objects: Mapping[str, Any], storage: Source, directory: str, manifest: Manifest, rank: int) -> set[str]:
    """Set the state of named objects, as `capture.capture` returned it, to the state in the checkpoint.

    Objects that are kept per rank get the state of the same rank; a rank that the saving world did not have gets the
    state of rank 0. Return the names of the tensors that were set in place. Raises ConfigError if the checkpoint does
    not fit the objects.
    """
    manifest = as_wanted(manifest, objects)
    names = capture.parameter_names(objects)
    targets: capture.Tensors = {}
    extra: dict[str, dict[str, Any]] = {}
    for name, thing in objects.items():
        if isinstance(thing, nn.Module):
            present = capture.Snapshot()
            capture.capture_module(present, name, thing)
            targets.update(present.tensors)
            extra[name] = {k.removeprefix(f"{name}."): k for k in present.values}
        elif capture.is_optimizer(thing):
            targets.update(capture.optimizer_targets(thing, name, names, manifest))
        elif capture.is_sharded(thing):
            saved = {
                k.removeprefix(f"{name}."): v.shape for k, v in manifest.tensors.items() if k.startswith(f"{name}.")
            }
            targets.update({f"{name}.{key}": tensor for key, tensor in thing.checkpoint_targets(saved).items()})
    others = [name for name, thing in objects.items() if capture.is_other(thing)]
    packed = {name: _packed(name, manifest, rank) for name in others}
    loose = {path: _empty(manifest, path) for value in packed.values() for path in tagged.tensor_paths(value)}
    load_tensors(storage, directory, manifest, {**targets, **loose})
    for name, thing in objects.items():
        if isinstance(thing, nn.Module):
            values = {
                k: tagged.unpack(manifest.values[v], loose) for k, v in extra[name].items() if v in manifest.values
            }
            if values:
                capture.unwrap(thing).load_state_dict(values, strict=False)
        elif capture.is_optimizer(thing):
            capture.restore_optimizer_values(thing, name, names, manifest, targets)
        elif capture.is_sharded(thing):
            thing.checkpoint_loaded(manifest.step)
        else:
            thing.load_state_dict(tagged.unpack(packed[name], loose))
    return set(targets)


def _packed(name: str, manifest: Manifest, rank: int) -> Any:
    for path in (name, f"rank.{rank}.{name}", f"rank.0.{name}"):
        if path in manifest.values:
            return manifest.values[path]
    raise ConfigError(f"checkpoint of step {manifest.step} has no state of {name!r}, which is registered now")


def _empty(manifest: Manifest, path: str) -> torch.Tensor:
    saved = manifest.tensors[path]
    return torch.empty(saved.shape, dtype=DTYPES[saved.dtype])
