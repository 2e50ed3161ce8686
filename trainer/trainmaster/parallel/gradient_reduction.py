"""How and when gradients are reduced over ranks: as sums, once for the micro-batches of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.fsdp import FSDPModule

from trainmaster.parallel.mesh import Mesh
from trainmaster.parallel.replicas import Replicas

if TYPE_CHECKING:
    from trainmaster.reduce.reducer import Reducer


def sum_gradients(model: nn.Module) -> None:
    """Reduce by sums, never by averages. `replicate` and HSDP obey too.

    A factor of 1 alone asks for PREMUL_SUM, a kind of reduction that not every backend has; forced sums are the same.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


class GradientSync:
    """When micro-batches of a step communicate. A pipeline's schedule decides that itself."""

    def __init__(
        self,
        roots: Sequence[nn.Module],
        mesh: Mesh,
        stage: int,
        replicas: Replicas | None,
        reducer: Reducer | None = None,
    ) -> None:
        """`stage`: of ZeRO."""
        self.replicas, self.reducer = replicas, reducer
        self._roots = [root for root in roots if isinstance(root, FSDPModule)]
        # Gradients that are whole on each rank anyway are reduced once; shards of them as soon as they are there, so
        # that no rank ever holds all of them.
        self._once = not mesh.is_sharded or stage == 1
        self._replicated = mesh.is_sharded and mesh.degree("dpReplicate") > 1 and reducer is None
        self._gathers_once = mesh.is_sharded and stage < 3

    def before(self, last: bool) -> None:
        """Call before each micro-batch's forward."""
        if self.replicas is not None:
            self.replicas.on = last
        for root in self._roots:
            root.set_is_last_backward(last)
            if self._once:
                root.set_requires_gradient_sync(last)
            elif self._replicated:
                root.set_requires_all_reduce(last)
            if self._gathers_once:
                root.set_reshard_after_backward(last)

    def before_pipeline(self) -> None:
        """Call before a pipeline's micro-batches: none of them communicates gradients of replicas."""
        if self.replicas is not None:
            self.replicas.prepare()

    def after_pipeline(self) -> None:
        """Call after them."""
        if self.replicas is not None:
            self.replicas.finish()

    def reshard(self) -> None:
        """Call after forward passes that no backward pass follows."""
        for root in self._roots:
            for module in root.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

    def after(self) -> None:
        """Call after all of a step's micro-batches."""
        if self.reducer is not None:
            self.reducer.reduce()
