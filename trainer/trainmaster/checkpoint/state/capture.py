"""The part of a checkpoint that comes from modules, optimizers and other objects with a `state_dict`.

Names: `<object>.<parameter's FQN>` for the tensors of a module, `<optimizer>.state.<object>.<FQN>.<key>` for optimizer
state (the layout of torch's flattened optimizer state dict), and `rank.<n>.<object>…` for objects that each rank keeps
separately. Neither reading nor restoring needs a collective or a fake optimizer step.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainmaster.checkpoint.state import tagged_values as tagged
from trainmaster.checkpoint.state.dtensors import is_dtensor, is_fsdp_module, with_part
from trainmaster.checkpoint.state.file_layout import DTYPES
from trainmaster.contract.wire.checkpoint_format import Manifest
from trainmaster.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
    from torch.distributed.tensor import DTensor

Tensors = dict[str, torch.Tensor]

_blocks: dict[tuple[Any, ...], list[ChunkStorageMetadata]] = {}

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


class Snapshot:
    """References to the tensors of a state, and its other values as tagged JSON. No tensor is copied."""

    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self.values: dict[str, Any] = {}
        self.buffers: set[str] = set()  # plain tensors that rank 0 saves, because replicas may differ between steps


def capture(objects: Mapping[str, Any], rank: int) -> Snapshot:
    """Return the state of named objects.

    Modules, optimizers, objects with `checkpoint_shards` and learning-rate schedules (objects with `optimizer`) are
    shared by all ranks. Every other object is kept for each rank.
    """
    snapshot = Snapshot()
    names = parameter_names(objects)
    for name, thing in objects.items():
        if isinstance(thing, nn.Module):
            capture_module(snapshot, name, thing)
        elif is_optimizer(thing):
            _capture_optimizer(snapshot, name, thing, names)
        elif is_sharded(thing):
            snapshot.tensors.update(capture_shards(name, thing))
    capture_others(snapshot, objects, rank)
    return snapshot


def capture_others(snapshot: Snapshot, objects: Mapping[str, Any], rank: int) -> None:
    """Add the state of objects that are neither modules nor optimizers nor sharded to `snapshot`."""
    for name, thing in objects.items():
        if is_other(thing):
            path = name if is_shared(thing) else f"rank.{rank}.{name}"
            snapshot.values[path] = tagged.pack(thing.state_dict(), path, snapshot.tensors)
            snapshot.buffers.update(tagged.tensor_paths(snapshot.values[path]))


def capture_shards(name: str, thing: Any) -> Tensors:
    """Return the tensors of an object with `checkpoint_shards`, by their names in a checkpoint."""
    return {f"{name}.{key}": tensor for key, tensor in thing.checkpoint_shards().items()}


def parameter_names(objects: Mapping[str, Any]) -> dict[int, str]:
    """Return the name of each parameter of all modules among `objects`, by the parameter's id()."""
    return {
        id(parameter): f"{name}.{_plain(fqn)}"
        for name, module in objects.items()
        if isinstance(module, nn.Module)
        for fqn, parameter in unwrap(module).named_parameters()
    }


def named_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return all parameters with their names in a checkpoint. One that several modules share comes under each name."""
    return [(_plain(fqn), parameter) for fqn, parameter in unwrap(module).named_parameters(remove_duplicate=False)]


def origin(optimizer: Any, parameter: torch.Tensor) -> torch.Tensor:
    """Return the model's parameter that belongs to an optimizer's parameter.

    They differ for an optimizer over plain shards, which has `origins`.
    """
    origins: dict[int, torch.Tensor] = getattr(optimizer, "origins", {})
    return origins.get(id(parameter), parameter)


def as_shard_of(local: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return `local` as a DTensor that is placed like `parameter`, in the same memory and without DTensor operations.

    If `parameter` is a plain tensor, `local` is returned as it is.
    """
    if not is_dtensor(parameter) or is_dtensor(local):
        return local
    return with_part(local, parameter)


def blocks(tensor: DTensor) -> list[ChunkStorageMetadata]:
    """Return the blocks of the whole tensor that this rank holds.

    The result is cached for all tensors with the same shape and placement, because torch takes 0.3 ms to find it.
    """
    lies = (tensor.shape, tensor.device_mesh, tensor.placements)
    if lies not in _blocks:
        _blocks[lies] = tensor.__create_chunk_list__()
    return _blocks[lies]


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module inside of DistributedDataParallel, DataParallel and torch.compile's wrapper.

    Raises ConfigError for FullyShardedDataParallel (FSDP1), which cannot be saved.
    """
    while True:
        if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            module = module.module
        elif type(module).__name__ == "OptimizedModule":
            module = module._orig_mod
        elif type(module).__name__ == "FullyShardedDataParallel":
            raise ConfigError("FullyShardedDataParallel (FSDP1) can't be saved; use torch's fully_shard (FSDP2)")
        else:
            return module


def optimizer_targets(optimizer: Any, name: str, names: dict[int, str], manifest: Manifest) -> Tensors:
    """Give each parameter of a fresh optimizer the state tensors of the checkpoint, filled with zeros.

    An optimizer with `state_kinds` that is not None gets only the tensors of these kinds.
    Return these tensors, and those within lists and dicts of the state, by name, as targets to load into. Afterwards
    `restore_optimizer_values` restores all state that is not a tensor.
    """
    targets: Tensors = {}
    by_parameter: dict[str, dict[str, str]] = {}
    prefix = f"{name}.state."
    kinds: frozenset[str] | None = getattr(optimizer, "state_kinds", None)
    known = {parameter_name for _, parameter_name, _ in _parameters(optimizer, names)}
    within = {path for k, v in manifest.values.items() if k.startswith(prefix) for path in tagged.tensor_paths(v)}
    for key in manifest.tensors:
        if key.startswith(prefix) and key not in within:
            found, kind = _parameter_and_kind(key[len(prefix) :], known)
            if kinds is None or kind in kinds:
                by_parameter.setdefault(found, {})[kind] = key
    for parameter, parameter_name, group in _parameters(optimizer, names):
        state = {}
        whole = origin(optimizer, parameter)
        for kind, key in by_parameter.get(parameter_name, {}).items():
            saved = manifest.tensors[key]
            if saved.shape == list(whole.shape):
                # By hand: the first zeros_like of a DTensor costs 10 ms of sharding propagation.
                local = parameter.to_local() if is_dtensor(parameter) else parameter
                empty = torch.zeros_like(local, dtype=DTYPES[saved.dtype], requires_grad=False)
                targets[key] = as_shard_of(empty, whole)
                state[kind] = targets[key] if is_dtensor(parameter) else empty
            else:
                # As torch.optim: the step count stays on the host unless the kernel reads it.
                host = kind == "step" and not (group.get("capturable") or group.get("fused"))
                tensor = torch.zeros(saved.shape, dtype=DTYPES[saved.dtype], device="cpu" if host else parameter.device)
                targets[key] = state[kind] = tensor
        for value in manifest.values.get(f"{prefix}{parameter_name}", {}).values():
            on_device = set(tagged.tensor_paths(value, ("tensor",)))
            for path in tagged.tensor_paths(value):
                saved, device = manifest.tensors[path], parameter.device if path in on_device else "cpu"
                targets[path] = torch.empty(saved.shape, dtype=DTYPES[saved.dtype], device=device)
        if state:
            # What the checkpoint lacks stays as it was prepared: see fp16's SGD in `optim.optimizer`.
            optimizer.state[parameter] = {**optimizer.state.get(parameter, {}), **state}
    return targets


def _parameter_and_kind(name: str, parameters: Container[str]) -> tuple[str, str]:
    """Return (parameter, kind of its state) for the rest of a tensor's name. Both may have dots. The parameter is "" if
    it is none of `parameters`."""
    parameter, _, kind = name.rpartition(".")
    while parameter and parameter not in parameters:
        parameter, _, last = parameter.rpartition(".")
        kind = f"{last}.{kind}"
    return parameter, kind


def restore_optimizer_values(
    optimizer: Any, name: str, names: dict[int, str], manifest: Manifest, tensors: Tensors
) -> None:
    """Set the state of a fresh optimizer that is not a tensor, such as numbers and lists, and its groups' options.

    `tensors` are those of `optimizer_targets`, after they were loaded.
    """
    for parameter, parameter_name, _ in _parameters(optimizer, names):
        values = manifest.values.get(f"{name}.state.{parameter_name}", {})
        if values:
            own = {kind: tagged.unpack(value, tensors) for kind, value in values.items()}
            optimizer.state[parameter] = {**optimizer.state.get(parameter, {}), **own}
    _restore_groups(optimizer, name, names, manifest)


def _restore_groups(optimizer: Any, name: str, names: dict[int, str], manifest: Manifest) -> None:
    """Set the options of each parameter group, such as the learning rate, to those of the checkpoint.

    An optimizer with `restored_options` keeps its own, but for these: the others may have been changed since the
    checkpoint was made.
    """
    restored: frozenset[str] | None = getattr(optimizer, "restored_options", None)
    saved = {p: group for group in manifest.values.get(f"{name}.param_groups", []) for p in group["params"]}
    for _, parameter_name, group in _parameters(optimizer, names):
        if parameter_name in saved:
            options = saved[parameter_name]["options"].items()
            group.update({k: tagged.unpack(v, {}) for k, v in options if restored is None or k in restored})


def capture_module(snapshot: Snapshot, name: str, module: nn.Module) -> None:
    """Add the parameters, buffers and extra state of a module to `snapshot`."""
    module = unwrap(module)
    parameters = {_plain(fqn) for fqn, _ in module.named_parameters(remove_duplicate=False)}
    sharded = any(is_dtensor(p) for p in module.parameters())
    for fqn, value in (_sharded_state(module) if sharded else module.state_dict()).items():
        key = f"{name}.{_plain(fqn)}"
        if isinstance(value, torch.Tensor):
            snapshot.tensors[key] = value
            if _plain(fqn) not in parameters:
                snapshot.buffers.add(key)
        else:
            snapshot.values[key] = tagged.pack(value, key, snapshot.tensors)


def buffers(name: str, module: nn.Module) -> list[tuple[str, Mapping[str, Any], str]]:
    """Return (name, dictionary that holds it, key in the dictionary) of each buffer that a checkpoint keeps."""
    return [
        (f"{name}.{_plain(f'{prefix}.{key}' if prefix else key)}", part._buffers, key)
        for prefix, part in unwrap(module).named_modules()
        for key, buffer in part._buffers.items()
        if buffer is not None and key not in part._non_persistent_buffers_set
    ]


def _capture_optimizer(snapshot: Snapshot, name: str, optimizer: Any, names: dict[int, str]) -> None:
    for parameter, parameter_name, _ in _parameters(optimizer, names):
        whole = origin(optimizer, parameter)
        for kind, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                is_shard = value.shape == parameter.shape
                key = f"{name}.state.{parameter_name}.{kind}"
                snapshot.tensors[key] = as_shard_of(value, whole) if is_shard else value
    capture_optimizer_values(snapshot, name, optimizer, names)


def capture_optimizer_values(snapshot: Snapshot, name: str, optimizer: Any, names: dict[int, str]) -> None:
    """Add an optimizer's state that is not a tensor to `snapshot`: group options, and numbers of parameters."""
    groups: dict[int, dict[str, Any]] = {}
    for parameter, parameter_name, group in _parameters(optimizer, names):
        prefix = f"{name}.state.{parameter_name}"
        state = optimizer.state.get(parameter, {})
        rest = {
            kind: tagged.pack(value, f"{prefix}.{path}", snapshot.tensors)
            for (kind, value), path in zip(state.items(), tagged.names_of(state), strict=True)
            if not isinstance(value, torch.Tensor)
        }
        if rest:
            snapshot.values[prefix] = rest
        options = groups.setdefault(id(group), {"params": [], "options": {}})
        options["params"].append(parameter_name)
        if not options["options"]:
            options["options"] = {
                k: tagged.pack(_number(v), f"{name}.{k}", {})
                for k, v in group.items()
                if k not in ("params", "param_names")
            }
    snapshot.values[f"{name}.param_groups"] = list(groups.values())


def _parameters(optimizer: Any, names: dict[int, str]) -> list[tuple[torch.Tensor, str, dict[str, Any]]]:
    return [
        (parameter, names.get(id(origin(optimizer, parameter)), f"group{g}.{i}"), group)
        for g, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    ]


def _sharded_state(module: nn.Module) -> dict[str, Any]:
    """Return `module.state_dict()` with the DTensors themselves.

    The detached copies that torch would return cost as much time as a whole restart.
    """
    found: dict[str, Any] = {}
    for prefix, part in module.named_modules():
        if is_fsdp_module(part):
            part.reshard()
        prefix = f"{prefix}." if prefix else ""
        found.update((prefix + k, v) for k, v in part._parameters.items() if v is not None)
        for key, buffer in part._buffers.items():
            if buffer is not None and key not in part._non_persistent_buffers_set:
                found[prefix + key] = buffer
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            found[f"{prefix}_extra_state"] = part.get_extra_state()
    return found


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def _plain(fqn: str) -> str:
    for wrapper in _WRAPPERS:
        fqn = fqn.replace(wrapper, "")
    return fqn


def is_optimizer(thing: Any) -> bool:
    """Return True if an object has the attributes of an optimizer."""
    return hasattr(thing, "param_groups") and hasattr(thing, "state")


def is_sharded(thing: Any) -> bool:
    """Return True if an object itself names its tensors as parts of whole tensors, as `Reducer` does.

    Such an object has `checkpoint_shards`, `checkpoint_targets` and `checkpoint_loaded`.
    """
    return hasattr(thing, "checkpoint_shards")


def is_other(thing: Any) -> bool:
    """Return True if only the `state_dict` of an object is known: it is no module, no optimizer and not sharded."""
    return not (isinstance(thing, nn.Module) or is_optimizer(thing) or is_sharded(thing))


def is_shared(thing: Any) -> bool:
    """Return True if all ranks have the same state of an object, so that it is saved once."""
    return hasattr(thing, "optimizer") or isinstance(thing, torch.amp.GradScaler)
