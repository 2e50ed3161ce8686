"""State that is not a tensor, as tagged JSON. Checkpoints use it instead of pickles.

Tensors within such a state are taken out under a name of their own, and saved like all other tensors.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import torch

from trainmaster.errors import ConfigError

_TAG = "$"


def pack(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return `value` as JSON, and put its tensors into `tensors` under their paths.

    Raises ConfigError for an object that cannot be kept.
    """
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_TAG: "float", "value": str(value)}
    if isinstance(value, torch.Tensor):
        tensors[path] = value
        return {_TAG: "tensor", "value": path}
    if isinstance(value, dict):
        parts = zip(value.items(), names_of(value), strict=True)
        pairs = [(k, pack(v, f"{path}.{name}", tensors)) for (k, v), name in parts]
        if all(isinstance(k, str) for k in value) and _TAG not in value:
            return dict(pairs)
        return {_TAG: "dict", "value": [[pack(k, path, tensors), v] for k, v in pairs]}
    if isinstance(value, (list, tuple, set, frozenset)) and type(value) in (list, tuple, set, frozenset):
        items = [pack(v, f"{path}.{i}", tensors) for i, v in enumerate(value)]
        return items if isinstance(value, list) else {_TAG: type(value).__name__, "value": items}
    if isinstance(value, (bytes, bytearray)):
        return {_TAG: "bytes", "value": base64.b64encode(value).decode()}
    if type(value).__module__ == "numpy":
        tensors[path] = torch.as_tensor(value.copy())
        return {_TAG: "array" if value.ndim else "scalar", "value": path}
    if isinstance(value, int):
        return int(value)
    raise ConfigError(
        f"state {path} holds a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint can't keep; "
        f"its state_dict() must be made of tensors, numbers, strings, lists, tuples, sets and dicts"
    )


def names_of(keys: Iterable[Any]) -> list[str]:
    """Return a name for each key of a dict, such that what lies under one key has no path of what lies under another.

    These are the keys themselves, unless a key is a prefix of another one at a dot ("a" and "a.b"), or looks like it (1
    and "1").
    """
    names = [str(key) for key in keys]
    known = set(names)
    prefixes = (prefix for name in names for prefix in accumulate(name.split(".")[:-1], "{}.{}".format))
    if len(known) == len(names) and known.isdisjoint(prefixes):
        return names
    return [f"#{index}" for index in range(len(names))]


def tensor_paths(packed: Any, tags: tuple[str, ...] = ("tensor", "array", "scalar")) -> list[str]:
    """Return the names of all tensors that `packed` refers to. With `tags`, only of those that were of these kinds."""
    if isinstance(packed, list):
        return [path for item in packed for path in tensor_paths(item, tags)]
    if isinstance(packed, dict):
        if packed.get(_TAG) in ("tensor", "array", "scalar"):
            return [packed["value"]] if packed[_TAG] in tags else []
        return [path for item in packed.values() for path in tensor_paths(item, tags)]
    return []


def unpack(packed: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return the value that `pack` was given."""
    if isinstance(packed, list):
        return [unpack(v, tensors) for v in packed]
    if not isinstance(packed, dict):
        return packed
    tag = packed.get(_TAG)
    if tag is None:
        return {k: unpack(v, tensors) for k, v in packed.items()}
    value = packed["value"]
    if tag == "tensor":
        return tensors[value]
    if tag == "array":
        return tensors[value].numpy()
    if tag == "scalar":
        return tensors[value].numpy()[()]
    if tag == "float":
        return float(value)
    if tag == "bytes":
        return base64.b64decode(value)
    if tag == "dict":
        return {unpack(k, tensors): unpack(v, tensors) for k, v in value}
    kinds: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}
    return kinds[tag](unpack(v, tensors) for v in value)
