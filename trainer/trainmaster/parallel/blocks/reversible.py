"""Blocks whose inputs are computed from their outputs, so that a chain of any length keeps the output of one block.

Gomez et al., "The Reversible Residual Network", arXiv 1707.04585; for transformers Kitaev et al., arXiv 2001.04451. A
block has two streams, as `models.layers.ReversibleBlock` has.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from trainmaster.errors import ConfigError
from trainmaster.parallel.model_plan import replace_forward


def apply(blocks: Iterable[nn.Module]) -> None:
    """Let blocks keep nothing except the output of the last block of a chain.

    Raises ConfigError for a block of one stream and for a block with dropout.
    """
    chain = Chain()
    for block in blocks:
        if not (hasattr(block, "first") and hasattr(block, "second")):
            raise ConfigError(
                f"recompute: Reversible needs blocks of two streams, and {type(block).__name__} is not one: it has no "
                f"methods first and second (see trainmaster.models.layers.ReversibleBlock); Full would do"
            )
        if any(isinstance(part, _DropoutNd) and part.p > 0 for part in block.modules()):
            raise ConfigError(
                f"recompute: Reversible computes a block once more to find its input, and {type(block).__name__} has "
                f"dropout, which would drop other elements the second time; Full would do, or p 0"
            )
        replace_forward(block, _reversed(type(block).forward, chain))


class Kept:
    """The output of a block, kept from its forward to its backward pass while no other block can compute it."""

    def __init__(self, output: Tensor) -> None:
        self.output: Tensor | None = output


class Chain:
    """The outputs that are kept. An output is no longer kept when another block takes it as its input.

    Outputs are identified by their storage, because hooks of sharding between two blocks pass on an alias of the
    tensor.
    """

    def __init__(self) -> None:
        self._open: weakref.WeakValueDictionary[int, Kept] = weakref.WeakValueDictionary()

    def keep(self, output: Tensor) -> Kept:
        """Keep the output of a block, and return it as a `Kept`."""
        kept = self._open[_place(output)] = Kept(output)
        return kept

    def taken(self, x: Tensor) -> Kept | None:
        """Return the `Kept` of the block whose output is `x`, and stop keeping it; None if `x` is no kept output."""
        kept = self._open.pop(_place(x), None)
        # Without an output it is that of a backward pass that is over, and something else has come to lie there.
        return kept if kept is not None and kept.output is not None else None


class _Reversed(torch.autograd.Function):  # type: ignore[misc]
    """A block that is run backwards. Its parameters get their gradients in backward passes within this backward pass.

    These gradients are those of the module's own parameters, so sharding and replicas find them where they expect them.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, forward: Callable[..., Tensor], block: Any, shared: tuple[Any, ...], chain: Chain
    ) -> Tensor:
        y = forward(block, x.detach(), *shared)
        ctx.block, ctx.shared = block, shared
        ctx.before, ctx.kept = chain.taken(x), chain.keep(y.detach())  # y itself would keep its own graph alive
        if ctx.before is not None:
            ctx.before.output = None
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        block, y = ctx.block, ctx.kept.output
        assert y is not None, "the block after a reversible one has had no backward pass"
        ctx.kept.output = None
        y1, y2 = y.chunk(2, -1)
        grad1, grad2 = grad.chunk(2, -1)
        x2, grad1 = _undone(block.second, y1, y2, grad1, grad2)
        x1, grad2 = _undone(lambda x: block.first(x, *ctx.shared), x2, y1, grad2, grad1)
        if ctx.before is not None:
            ctx.before.output = torch.cat((x1, x2), -1)
        return torch.cat((grad1, grad2), -1), None, None, None, None


def _undone(
    function: Callable[[Tensor], Tensor], x: Tensor, total: Tensor, grad_x: Tensor, grad_total: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (total - function(x), the gradient of x with the part that came through `function`)."""
    # Hooks that count activations are meant for the activations of the forward pass, not for these.
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(Tensor.detach, lambda kept: kept):
        x = x.detach().requires_grad_()
        added = function(x)
    torch.autograd.backward(added, grad_total)
    return total - added.detach(), grad_x if x.grad is None else grad_x + x.grad


def _reversed(forward: Callable[..., Tensor], chain: Chain) -> Callable[..., Tensor]:
    def reversed_(self: nn.Module, x: Tensor, *shared: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return forward(self, x, *shared)
        assert not any(isinstance(t, Tensor) and t.requires_grad for t in torch.utils._pytree.tree_leaves(shared)), (
            "the inputs of a reversible block other than its streams get no gradient"
        )
        # Parameters are no inputs of the function: with a frozen embedding none would need a gradient.
        return _Reversed.apply(x if x.requires_grad else x.detach().requires_grad_(), forward, self, shared, chain)

    return reversed_


def _place(x: Tensor) -> int:
    place: int = x.untyped_storage()._cdata
    return place
