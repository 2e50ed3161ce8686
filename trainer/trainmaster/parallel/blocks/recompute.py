"""Activation recomputation: blocks keep less from the forward to the backward pass, and compute the rest again.

Full keeps only the input of a block (Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174).
Selective also keeps what is expensive to compute: the results of matrix products and of attention. The operations
between them (norms, activation functions, rotations) mainly cost memory bandwidth. Reversible keeps nothing of a block,
but needs blocks of two streams: see `reversible`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainmaster.parallel.blocks import reversible
from trainmaster.parallel.model_plan import replace_forwards

_aten = torch.ops.aten
KEPT = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten._grouped_mm.default,
        _aten._scaled_mm.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    }
)
"""Operations whose results Selective keeps."""


def apply(blocks: Iterable[nn.Module], how: str) -> None:
    """Let blocks recompute their activations in the backward pass.

    Call it after everything else that changes how blocks compute, and before their parameters are sharded. `how` is
    Full, Selective or Reversible. A block that draws random numbers from torch's generators gets the same ones the
    second time. Reversible raises ConfigError for blocks of one stream and for blocks with dropout.
    """
    if how == "Reversible":
        reversible.apply(blocks)
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if how == "Selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    else:
        assert how == "Full", how
    replace_forwards(blocks, lambda forward: _recomputed(forward, options))


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def _recomputed(forward: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    def recomputed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(self, *args, **kwargs)
        return checkpoint(forward, self, *args, **options, **kwargs)

    return recomputed
