"""Matrix products of blocks in 8-bit floats; the operations between them stay in bf16.

Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433: E4M3 for activations and weights, which need
precision, and E5M2 for gradients, which need range. Each tensor has a scale of its own, computed at each use: its
largest value becomes the largest value of the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trainmaster.errors import ConfigError
from trainmaster.parallel.model_plan import replace_forwards

ACTIVATION, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16  # kernels need a summed dim, and rows of the second factor, that are multiples of this
NEEDED = (8, 9)  # the lowest CUDA compute capability: Ada, Hopper
_LEAST = 1e-12  # lower bound of a tensor's largest value, for tensors of zeros


def apply(blocks: Iterable[nn.Module], device_type: str) -> None:
    """Let the linear layers of blocks compute in 8 bits, where their sizes allow it.

    Call it after everything else that changes how blocks compute, and before blocks are recomputed, compiled or
    sharded. Raises ConfigError if the device has no 8-bit products.
    """
    check(device_type)
    replace_forwards(blocks, _in_eight_bits)


def check(device_type: str) -> None:
    """Raise ConfigError, with a sentence, if this device has no 8-bit products."""
    if device_type == "cuda" and torch.version.cuda and torch.cuda.get_device_capability() < NEEDED:
        has = ".".join(map(str, torch.cuda.get_device_capability()))
        raise ConfigError(
            f"training.precision: fp8 needs a GPU of compute capability {'.'.join(map(str, NEEDED))} or more, and this "
            f"one ({torch.cuda.get_device_name()}) has {has}; bf16 would do"
        )


def _in_eight_bits(forward: Callable[..., Any]) -> Callable[..., Any]:
    def computed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with _Products():
            return forward(self, *args, **kwargs)

    return computed


class _Products(TorchFunctionMode):  # type: ignore[misc]
    """Computes each call of F.linear in 8 bits, whether a module or a part of it on this rank makes the call."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is F.linear and not kwargs and suits(args[0], args[1]):
            x, weight, *bias = args
            y = torch.unflatten(_Linear.apply(x.flatten(0, -2), weight), 0, x.shape[:-1])
            return y if not bias or bias[0] is None else y + bias[0]
        if function is Tensor.unflatten:
            # Dynamo of torch 2.11 can't trace the method within a mode, and would leave the block as it is.
            function = torch.unflatten
        return function(*args, **(kwargs or {}))


def suits(x: Tensor, weight: Tensor) -> bool:
    """Return True if x [..., K] times weight [N, K] can be computed in 8 bits, with its backward pass."""
    fits = x.dim() > 1 and x.numel() > 0 and not any(n % MULTIPLE for n in weight.shape)
    return fits and x.dtype == weight.dtype == torch.bfloat16


class _Linear(torch.autograd.Function):  # type: ignore[misc]
    """The product of x [M, K] and the transpose of weight [N, K], in 8 bits.

    From the forward to the backward pass, x is kept in 8 bits. The weight is scaled once more in the backward pass,
    because other code keeps it anyway. The gradient of the weight is summed over M, which is padded with zeros.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x8, x_scale = _scaled(_filled(x), ACTIVATION)
        ctx.save_for_backward(x8, x_scale, weight)
        return _product(x8, x_scale, *_scaled(weight, ACTIVATION))[: len(x)]

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x8, x_scale, weight = ctx.saved_tensors
        grad8, scale = _scaled(_filled(grad), GRADIENT)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            weight8, weight_scale = _scaled(weight, ACTIVATION)
            of_x = _product(grad8, scale, weight8.t().contiguous(), weight_scale)[: len(grad)]
        if ctx.needs_input_grad[1]:
            of_weight = _product(grad8.t().contiguous(), scale, x8.t().contiguous(), x_scale)
        return of_x, of_weight


def _filled(x: Tensor) -> Tensor:
    missing = -len(x) % MULTIPLE
    return F.pad(x, (0, 0, 0, missing)) if missing else x


def _scaled(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return (x in 8 bits, scale): x is their product. The scale is a scalar in fp32. Infinity and NaN make all of it
    NaN."""
    most = torch.finfo(kind).max
    scale = x.abs().amax().float().clamp(min=_LEAST) / most
    return (x.float() / scale).clamp(-most, most).to(kind), scale


def _product(a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor) -> Tensor:
    """Return a [M, K] times the transpose of b [N, K], both contiguous. It is summed in fp32 and returned in bf16."""
    return torch._scaled_mm(a, b.t(), scale_a=a_scale, scale_b=b_scale, out_dtype=torch.bfloat16)
