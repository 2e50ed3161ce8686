"""`tm.parallelize`: the parallelism strategies for a user's own module, in a user's own loop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, overload

import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import nn

from trainmaster.contract.config import (
    CommunicationConfig,
    CompressionConfig,
    ParallelismConfig,
    Recompute,
    Strict,
    compile_refusal,
    precision_refusal,
)
from trainmaster.errors import ConfigError
from trainmaster.parallel import StepShape
from trainmaster.parallel import parallelize as spread
from trainmaster.parallel.blocks import compiling
from trainmaster.parallel.forward_and_backward import Parallel
from trainmaster.parallel.local_devices.several_devices import Devices, over_devices

IN_ONE_PROCESS = ("pp", "dpReplicate")
PRECISIONS = ("fp32", "bf16", "fp8")
Config = TypeVar("Config", bound=Strict)


@overload
def parallelize(
    model: nn.Module,
    parallelism: Mapping[str, Any],
    *,
    precision: Literal["fp32", "bf16", "fp8"] = "fp32",
    recompute: Recompute = "None",
    compile: bool = False,
    compression: Mapping[str, Any] | None = None,
    sequence: int | None = None,
    micro_batch: int = 1,
    micro_batches: int = 1,
) -> Parallel: ...


@overload
def parallelize(
    model: nn.Module,
    parallelism: Mapping[str, Any],
    *,
    devices: Sequence[str | torch.device],
    sequence: int | None = None,
) -> Devices: ...


def parallelize(
    model: nn.Module,
    parallelism: Mapping[str, Any],
    *,
    precision: Literal["fp32", "bf16", "fp8"] = "fp32",
    recompute: Recompute = "None",
    compile: bool = False,
    compression: Mapping[str, Any] | None = None,
    devices: Sequence[str | torch.device] | None = None,
    sequence: int | None = None,
    micro_batch: int = 1,
    micro_batches: int = 1,
) -> Parallel | Devices:
    """Divide a model among all ranks of the default process group, and return it as a `Parallel`.

        parallel = tm.parallelize(model, {"dpShard": 2, "tp": 2})
        optimizer = torch.optim.AdamW(parallel.model.parameters())
        ...
        loss = parallel.forward_backward([(tokens, targets)], 1, divisor)   # or parallel.forward(x), and any loss

    - `model`: the module, on this rank's device, with the same weights on all ranks. It is changed in place. Tensor,
      context, expert and pipeline parallelism need a `Plan` as its attribute `plan`. If the plan names blocks, each
      block is sharded separately.
    - `parallelism`: the degrees and options of `training.parallelism` in a job.
    - `precision`, `recompute`, `compile`: as in `training` of a job. Except for bf16, they apply to the blocks that the
      plan names.
    - `compression`: as in `training.communication.compression` of a job. After backward passes of your own, call
      `parallel.sum_gradients()`. After the step of the optimizer, call `parallel.completed()`. Save `parallel.reducer`
      in checkpoints if it has state (`has_state`).
    - `devices`: devices of this process, instead of ranks; no process group is needed. `{"pp": n}` puts the layers on n
      devices, one of which computes at a time. `{"dpReplicate": n}` splits each batch over n devices. Precision,
      recompute, compile and compression cannot be set then.
    - `sequence`: the number of tokens of a sequence. A pipeline needs it.
    - `micro_batch`: the number of sequences of a micro-batch. A pipeline needs it.
    - `micro_batches`: the number of micro-batches of a step. A pipeline needs it.

    Gradients are sums over all ranks, so divide the loss by the number of tokens of the whole step, not by the number
    of a rank's own tokens. If the model itself adds losses (`Plan.auxiliary`), give this number to `parallel.forward`.

    Each forward pass takes one number from torch's generator for dropout. Ranks that compute different tokens derive
    different masks from it. The generators of the ranks of a tp group must have the same state, as after
    `torch.manual_seed` with the same seed.

    Raises ConfigError, before anything is changed, with a sentence that says what does not fit.
    """
    if devices is not None:
        if precision != "fp32":
            raise ConfigError(
                "tm.parallelize: `precision` cannot be combined with `devices`; cast the model's weights instead"
            )
        if recompute != "None":
            raise ConfigError(
                "tm.parallelize: `recompute` cannot be combined with `devices`; use torch.utils.checkpoint in the model"
            )
        if compile:
            raise ConfigError(
                "tm.parallelize: `compile` cannot be combined with `devices`; call torch.compile yourself"
            )
        if compression is not None:
            raise ConfigError(
                "tm.parallelize: `compression` cannot be combined with `devices`, because one process has no other "
                "ranks to send gradients to; leave it out"
            )
        return _over_devices(model, parallelism, devices, sequence)
    if not dist.is_initialized():
        raise ConfigError("tm.parallelize needs torch.distributed.init_process_group() before it")
    config = _read(ParallelismConfig, parallelism, "parallelism")
    try:
        degrees = config.resolve(dist.get_world_size())
    except ValueError as error:
        raise ConfigError(f"parallelism: {error}") from None
    _check_numbers(precision, recompute)
    if degrees.get("island", 1) > 1:
        raise ConfigError("parallelism.island: tm.parallelize does not support islands; use `framework: Trainmaster`")
    if compression is not None and config.sharding is not None and config.sharding.offload:
        raise ConfigError(
            "compression works on the device, and parallelism.sharding.offload moves gradients to host memory; leave "
            "one of them out"
        )
    if config.sharding is not None and config.sharding.offload and degrees["dpShard"] * degrees.get("cp", 1) == 1:
        raise ConfigError(
            "parallelism.sharding.offload keeps shards in host memory, and dpShard x cp is 1; set dpShard to 2 or "
            "more, or leave offload out"
        )
    communication = None
    if compression is not None:
        communication = CommunicationConfig(compression=_read(CompressionConfig, compression, "compression"))
        if degrees["dpReplicate"] == 1:
            raise ConfigError(
                "compression: there are no replicas that send gradients, because parallelism.dpReplicate is 1"
            )
    if degrees.get("pp", 1) > 1:
        _check_sequence(sequence)
        pipeline = config.pipeline
        refusal = pipeline.refusal(degrees["pp"], micro_batches) if pipeline is not None else None
        if refusal:
            raise ConfigError(f"{refusal}; tm.parallelize was called with micro_batches={micro_batches}")
    unfit = precision_refusal(precision, recompute) or (compile_refusal(config, recompute) if compile else None)
    if unfit:
        raise ConfigError(unfit)
    device = next(model.parameters()).device.type
    if compile:
        compiling.prepare(device)
    shape = StepShape(sequence or 0, micro_batch, micro_batches)
    parallel = spread(
        model,
        degrees,
        config,
        precision,
        device,
        shape,
        recomputed=recompute,
        communication=communication,
        compiled=compile,
    )
    parallel.rng.follow()
    return parallel


def _check_numbers(precision: str, recompute: str) -> None:
    """Raise ConfigError for a precision or a recomputation that does not exist here."""
    if precision == "fp16":
        raise ConfigError(
            "precision: fp16 needs a loss scale, or small gradients become 0, and tm.parallelize has none; use bf16, "
            "or `framework: Trainmaster`"
        )
    for name, given, known in (("precision", precision, PRECISIONS), ("recompute", recompute, get_args(Recompute))):
        if given not in known:
            raise ConfigError(f"{name}: {given!r} is not one of {', '.join(known)}")


def _read(kind: type[Config], fields: Mapping[str, Any], where: str) -> Config:
    """Return the fields as a config model. Raises ConfigError with everything that is wrong."""
    try:
        return kind.model_validate(dict(fields))
    except ValidationError as error:
        problems = [f"{'.'.join([where, *map(str, e['loc'])])}: {e['msg']}" for e in error.errors()]
        raise ConfigError("; ".join(problems)) from None


def _over_devices(
    model: nn.Module, parallelism: Mapping[str, Any], names: Sequence[str | torch.device], sequence: int | None
) -> Devices:
    for axis, degree in parallelism.items():
        if axis not in IN_ONE_PROCESS:
            raise ConfigError(f"parallelism.{axis}: only {' and '.join(IN_ONE_PROCESS)} can be combined with devices")
        if type(degree) is not int or degree < 1:
            raise ConfigError(f"parallelism.{axis}: a whole number of devices is expected, not {degree!r}")
    if sum(degree > 1 for degree in parallelism.values()) > 1:
        raise ConfigError("parallelism: pp and dpReplicate cannot be combined on devices of one process; use ranks")
    product = math.prod(parallelism.values())
    if product != len(names):
        raise ConfigError(f"parallelism: its degrees need {product} devices, but devices has {len(names)}")
    try:
        devices = [torch.device(name) for name in names]
    except RuntimeError as error:
        raise ConfigError(f"devices: {str(error).splitlines()[0]}") from None
    if parallelism.get("pp", 1) > 1:
        _check_sequence(sequence)
    return over_devices(model, parallelism, devices, sequence or 0)


def _check_sequence(sequence: int | None) -> None:
    if sequence is None:
        raise ConfigError("tm.parallelize: parallelism.pp needs sequence=…, the number of tokens of a sequence")
