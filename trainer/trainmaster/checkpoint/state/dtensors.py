"""DTensors: which values are some, and how one is created from a rank's part of a whole tensor.

The import of DTensor takes as long as a third of torch's own, and most ranks have none. A process that has not imported
DTensor has no DTensor either, so this module asks `sys.modules` instead of importing it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def is_dtensor(value: Any) -> TypeGuard[DTensor]:
    """Return True if `value` is a DTensor."""
    return _is_instance(value, "torch.distributed.tensor", "DTensor")


def is_fsdp_module(module: Any) -> TypeGuard[FSDPModule]:
    """Return True if `fully_shard` was called on `module`."""
    return _is_instance(module, "torch.distributed.fsdp", "FSDPModule")


def _is_instance(value: Any, module: str, name: str) -> bool:
    # A module that is only partly imported has no such class yet, and then nothing is an instance of it.
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def with_part(part: Tensor, like: DTensor) -> DTensor:
    """Return a DTensor placed like `like`, whose part on this rank is `part`, in the same memory and without a copy."""
    # Whoever has `like` has imported both modules.
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    mesh, placements, whole, stride = like.device_mesh, like.placements, like.shape, like.stride()
    if part.device.type == mesh.device_type:
        return DTensor.from_local(part, mesh, placements, run_check=False, shape=whole, stride=stride)
    # Shards in host memory, of a mesh of devices: `from_local` would copy them to this rank's device.
    spec = DTensorSpec(mesh, placements, tensor_meta=TensorMeta(whole, stride, part.dtype))
    return DTensor(part, spec, requires_grad=part.requires_grad)
