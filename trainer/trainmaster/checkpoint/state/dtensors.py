"""Creation of DTensors from a rank's part of a whole tensor."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta


def with_part(part: Tensor, like: DTensor) -> DTensor:
    """Return a DTensor placed like `like`, whose part on this rank is `part`, in the same memory and without a copy."""
    mesh, placements, whole, stride = like.device_mesh, like.placements, like.shape, like.stride()
    if part.device.type == mesh.device_type:
        return DTensor.from_local(part, mesh, placements, run_check=False, shape=whole, stride=stride)
    # Shards in host memory, of a mesh of devices: `from_local` would copy them to this rank's device.
    spec = DTensorSpec(mesh, placements, tensor_meta=TensorMeta(whole, stride, part.dtype))
    return DTensor(part, spec, requires_grad=part.requires_grad)
