"""Element-wise operations on DTensors without DTensor's planning.

For each operation and shape DTensor searches for suitable placements, which takes 5 to 30 ms of Python on a 2-D mesh: a
quarter of a second of each restart. An operation that treats each element alone needs no plan if all its DTensors have
the same placements: it runs on the local tensors, and the result has these placements, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from trainmaster.checkpoint.state.dtensors import with_part


class elementwise(TorchDispatchMode):  # type: ignore[misc]
    """A context in which every operation on DTensors must be element-wise. Nothing checks that.

        with elementwise():
            optimizer.step()

    AdamW, SGD, detach, clone, zeros_like and copy_ are element-wise; norms, sums and matrix products are not.
    """

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if DTensor not in types:
            return func(*args, **(kwargs or {}))
        flat, shape = tree_flatten((args, kwargs or {}))
        pattern = next(value for value in flat if isinstance(value, DTensor))
        whole: dict[int, DTensor] = {}
        for index, value in enumerate(flat):
            if isinstance(value, DTensor):
                assert (value.placements, value.device_mesh) == (pattern.placements, pattern.device_mesh), func
                flat[index] = local = value._local_tensor
                whole[id(local)] = value
        local_args, local_kwargs = tree_unflatten(flat, shape)
        # What comes back is what went in (in-place operations), or new and like the pattern.
        return tree_map_only(
            torch.Tensor,
            lambda result: whole.get(id(result)) if id(result) in whole else with_part(result, pattern),
            func(*local_args, **local_kwargs),
        )
