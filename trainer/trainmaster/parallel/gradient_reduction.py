"""How and when gradients are reduced over ranks: as sums, once for the micro-batches of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.fsdp import FSDPModule

from trainmaster.parallel.gradient_buckets import Replicas
from trainmaster.parallel.mesh import Mesh

if TYPE_CHECKING:
    from trainmaster.reduce.compressed_reducer import Reducer


def sum_gradients(model: nn.Module) -> None:
    """Let FSDP, HSDP and `replicate` reduce gradients by sums, never by averages.

    A divide factor of 1 alone would use PREMUL_SUM, which not every backend has; forced sums give the same result.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


class GradientSync:
    """Which micro-batches of a step communicate. In a pipeline its schedule decides that."""

    def __init__(
        self,
        roots: Sequence[nn.Module],
        mesh: Mesh,
        stage: int,
        replicas: Replicas | None,
        reducer: Reducer | None = None,
    ) -> None:
        """`stage` is the stage of ZeRO."""
        self.replicas, self.reducer = replicas, reducer
        self._roots = [root for root in roots if isinstance(root, FSDPModule)]
        # Gradients that are whole on each rank anyway are reduced once; shards of them as soon as they are there, so
        # that no rank ever holds all of them.
        self._once = not mesh.is_sharded or stage == 1
        self._replicated = mesh.is_sharded and mesh.degree("dpReplicate") > 1 and reducer is None
        # Parameters do not change within a step. Where they are whole on each rank, so is what they are cast to.
        self._prepares_once = not mesh.is_sharded or stage < 3

    def before(self, last: bool) -> None:
        """Prepare the next micro-batch. Call it before each forward pass; `last` is true for the last micro-batch."""
        if self.replicas is not None:
            self.replicas.on = last
        for root in self._roots:
            root.set_is_last_backward(last)
            if self._once:
                root.set_requires_gradient_sync(last)
            elif self._replicated:
                root.set_requires_all_reduce(last)
            if self._prepares_once:
                root.set_reshard_after_backward(last)

    def before_pipeline(self) -> None:
        """Prepare the micro-batches of a pipeline, none of which communicates gradients of replicas."""
        if self.replicas is not None:
            self.replicas.prepare()

    def after_pipeline(self) -> None:
        """Sum the gradients of replicas. Call it after all micro-batches of a pipeline."""
        if self.replicas is not None:
            self.replicas.finish()

    def reshard(self) -> None:
        """Release gathered parameters. Call it after forward passes without a backward pass."""
        for root in self._roots:
            for module in root.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

    def after(self) -> None:
        """Sum compressed gradients. Call it after all micro-batches of a step."""
        if self.reducer is not None:
            self.reducer.reduce()
