"""`tm.parallelize`: the strategies for a user's own module, in a user's own loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch.distributed as dist
from pydantic import ValidationError
from torch import nn

from trainmaster.contract.config import ParallelismConfig
from trainmaster.errors import ConfigError
from trainmaster.parallel import StepShape
from trainmaster.parallel import parallelize as spread
from trainmaster.parallel.step import Parallel


def parallelize(
    model: nn.Module,
    parallelism: Mapping[str, Any],
    *,
    precision: Literal["fp32", "bf16"] = "fp32",
    sequence: int | None = None,
    micro_batch: int = 1,
    micro_batches: int = 1,
) -> Parallel:
    """`model` over all ranks of the default process group, which must be there.

        parallel = tm.parallelize(model, {"dp_shard": 2, "tp": 2})
        optimizer = torch.optim.AdamW(parallel.model.parameters())
        ...
        loss = parallel.forward_backward([(tokens, targets)], 1, divisor)   # or parallel.forward(x), and any loss

    parallelism: as in a job's `training.parallelism`. Gradients are sums over ranks: divide the loss by what the whole
    step has, not by a rank's share. The model, with the same weights on all ranks and on this rank's device, is changed
    in place; it declares by `model.plan` (`trainmaster.parallel.Plan`) what tensor, context, expert and pipeline
    parallelism need; sharding is block by block where the plan names blocks. A pipeline needs `sequence`, the tokens of
    a sequence, and how many sequences each of how many micro-batches has.

    Raises ConfigError, before anything has changed, in words.
    """
    if not dist.is_initialized():
        raise ConfigError("tm.parallelize needs torch.distributed.init_process_group() before it")
    try:
        config = ParallelismConfig.model_validate(dict(parallelism))
        degrees = config.resolve(dist.get_world_size())
    except ValidationError as error:
        problems = [f"parallelism.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise ConfigError("; ".join(problems)) from None
    except ValueError as error:
        raise ConfigError(f"parallelism: {error}") from None
    if degrees.get("pp", 1) > 1:
        if sequence is None:
            raise ConfigError("tm.parallelize: parallelism.pp needs sequence=…, the number of tokens of a sequence")
        pipeline = config.pipeline
        refusal = pipeline.refusal(degrees["pp"], micro_batches) if pipeline is not None else None
        if refusal:
            raise ConfigError(f"{refusal}; tm.parallelize(…, micro_batches={micro_batches}) says otherwise")
    device = next(model.parameters()).device.type
    shape = StepShape(sequence or 0, micro_batch, micro_batches)
    return spread(model, degrees, config, precision, device, shape)
