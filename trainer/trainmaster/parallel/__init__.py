"""Parallelism strategies. Each has one function, `apply(model, …)`; `strategy_order.parallelize` combines them.

With every strategy a gradient is the SUM over all ranks: the loss is divided by the valid tokens of the whole step, so
no strategy divides by its number of ranks.
"""

from __future__ import annotations

from trainmaster.parallel.elementwise_dtensor import elementwise
from trainmaster.parallel.forward_and_backward import Parallel
from trainmaster.parallel.gradient_norm import clip_factor, gradient_norm_squared, local_gradients, scale_gradients_
from trainmaster.parallel.loss import cross_entropy
from trainmaster.parallel.mesh import Mesh
from trainmaster.parallel.model_plan import Plan
from trainmaster.parallel.stages.pipeline import StepShape
from trainmaster.parallel.strategy_order import of_job, parallelize

__all__ = [
    "Mesh",
    "Parallel",
    "Plan",
    "StepShape",
    "clip_factor",
    "cross_entropy",
    "elementwise",
    "gradient_norm_squared",
    "local_gradients",
    "of_job",
    "parallelize",
    "scale_gradients_",
]
