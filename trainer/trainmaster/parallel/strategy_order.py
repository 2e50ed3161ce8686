"""The order in which the parallelism strategies are applied to a model, and why this order holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import torch
import torch._dynamo  # fully_shard imports it when first called: seconds that belong before a fork
from torch import nn

from trainmaster.contract.config import (
    BUCKET_MIB,
    CommunicationConfig,
    ContextConfig,
    ParallelismConfig,
    PipelineConfig,
    ShardingConfig,
    TensorConfig,
    TrainingConfig,
)
from trainmaster.errors import ConfigError
from trainmaster.models import allowed_parallelism
from trainmaster.parallel import context_parallel, data_parallel, expert_parallel, fsdp, tensor_parallel
from trainmaster.parallel.blocks import compiling, float8, recompute
from trainmaster.parallel.elementwise_dtensor import elementwise
from trainmaster.parallel.forward_and_backward import Parallel
from trainmaster.parallel.forward_rng import ForwardRng
from trainmaster.parallel.gradient_buckets import Replicas
from trainmaster.parallel.gradient_reduction import GradientSync
from trainmaster.parallel.loss import compiled_cross_entropy, cross_entropy
from trainmaster.parallel.mesh import Mesh
from trainmaster.parallel.model_plan import check, named, plan_of
from trainmaster.parallel.stages import pipeline
from trainmaster.parallel.stages.partition import stream_and_logits
from trainmaster.parallel.stages.pipeline import StepShape
from trainmaster.reduce.compressed_reducer import Reducer


def of_job(
    model: nn.Module,
    config: TrainingConfig,
    world_size: int,
    device_type: str,
    shape: StepShape,
    profile: Path | None = None,
) -> Parallel:
    """Divide `model` among the ranks as a job's config says, and set the precision of this process' matrix products.

    See `parallelize` for the arguments. Raises ConfigError if the model or this machine cannot do it.
    """
    torch.set_float32_matmul_precision(config.matmulPrecision.lower())
    if config.compile:
        compiling.prepare(device_type)
    return parallelize(
        model,
        config.parallelism.resolve(world_size),
        config.parallelism,
        config.precision,
        device_type,
        shape,
        profile,
        config.recompute,
        config.communication,
        config.compile,
        own_loss=True,
    )


def parallelize(
    model: nn.Module,
    degrees: Mapping[str, int],
    config: ParallelismConfig,
    precision: str,
    device_type: str,
    shape: StepShape,
    profile: Path | None = None,
    recomputed: str = "None",
    communication: CommunicationConfig | None = None,
    compiled: bool = False,
    own_loss: bool = False,
) -> Parallel:
    """Divide `model` over the mesh of `degrees` (see `ParallelismConfig.resolve`), and return the result.

    `model` has its whole initial weights, on its device. It is changed in place: what is left of it is what this rank
    trains. `profile` is the file in which `pipeline.balance: Profile` keeps its measurement; without a file, each call
    measures again. `recomputed`, `communication` and `compiled` are `training.recompute`, `training.communication` and
    `training.compile` of a job; call `compiling.prepare` before, if `compiled` is true. `own_loss`: nothing but
    `Parallel.loss` reads the model's output, so that this may stay in `precision` until compiled code casts it.

    It needs the default process group. Raises ConfigError if the model's plan does not allow a strategy.
    """
    check(model)
    _check_blocks(model, precision, recomputed, compiled)
    plain = allowed_parallelism.is_plain(degrees, precision)
    if not plain:
        _check_shared(model)
    compression = communication.compression if communication is not None else None
    mesh = Mesh(degrees, device_type, replicas_apart=compression is not None and not plain)
    of_pipeline, of_tensor = config.pipeline or PipelineConfig(), config.tensor or TensorConfig()
    of_context, sharding = config.context or ContextConfig(), config.sharding or ShardingConfig()
    many_stages = mesh.degree("pp") > 1

    # The pipeline comes first, while the model is whole: its blocks' costs are compared, and nothing is done to blocks
    # that other ranks have.
    stages: list[pipeline.Stage] = []
    if many_stages:
        ends = stream_and_logits(model, shape.time)
        stages, table = pipeline.apply(model, mesh["pp"], of_pipeline, shape.time, precision, profile, plain=plain)

    # Experts are dealt out whole, or in the parts that tensor parallelism makes of each.
    experts = expert_parallel.apply(model, mesh.experts()) if mesh.experts_over > 1 else []

    # Then matrices, each of which is split as the whole that it is.
    vocabulary = None
    if mesh.degree("tp") > 1:
        tensor_parallel.apply(model, mesh["tp"], of_tensor)
        if of_tensor.vocabulary and "head" in plan_of(model).tensor.values():
            vocabulary = mesh.group("tp")

    # Attention gets the whole sequence, for the heads that are left to this rank.
    chunks = None
    if mesh.degree("cp") > 1:
        context_parallel.apply(model, mesh.group("cp"), of_context)
        chunks = context_parallel.Chunks(mesh.degree("cp"), of_context.balance == "HeadTail")

    if precision == "fp8":
        float8.apply(_blocks(model), device_type)

    # What a block computes does not change any more, so recomputation can wrap it. Sharding must come after: then the
    # parameters that it gathers for a block's backward pass also serve the recomputation.
    if recomputed != "None":
        recompute.apply(_blocks(model), recomputed)
    if compiled:
        compiling.apply(_blocks(model), precision)

    # Data parallelism comes last: it moves the parameters that are left, just before and after they are used. The only
    # operation on DTensors here is `detach`, which is element-wise and needs no plan: this halves the time it takes.
    roots: list[nn.Module] = [*stages] or [model]
    replicas = None
    if plain:
        roots = []  # nothing to gather or to cast
    if plain and compression is None and mesh.degree("dpReplicate") > 1:
        bucket = communication.bucketMiB if communication is not None else BUCKET_MIB
        model.replicas = replicas = Replicas(model, mesh.data().get_group(), bucket << 20)
    if plain or compression is not None:
        model.counts = mesh.coordinate("dpReplicate") == 0  # for the norm of gradients
    with elementwise():
        if experts:
            fsdp.experts(experts, mesh.experts_data(), sharding, precision, keep_whole=many_stages)
        for root in roots:
            blocks = [*root.blocks] if isinstance(root, pipeline.Stage) else [*_blocks(model)]
            casts = root.is_last if isinstance(root, pipeline.Stage) else not (compiled and own_loss)
            if mesh.is_sharded:
                # Shards, and with dpReplicate > 1 replicas of these shards (HSDP): one reduce-scatter within the shard
                # group, one all-reduce of the result across replicas. A stage computes many micro-batches between the
                # first and the last use of its parameters, so there they are gathered once.
                fsdp.apply(root, blocks, mesh.data(), sharding, precision, keep_whole=many_stages, casts=casts)
            else:
                # With one shard there is nothing to gather, so the parameters stay whole and only gradients travel.
                data_parallel.apply(root, blocks, mesh.data(), precision, casts=casts)

    # Replicas send compressed gradients when all gradients are complete, with each of the strategies above.
    reducer = Reducer(model, mesh, compression) if compression is not None else None
    model.stage_ranks = mesh.stage_ranks  # for checkpoints: the ranks that have parameters of the same names
    model.saved_elsewhere = pipeline.unstaged(model) if mesh.coordinate("pp") else frozenset()
    model.replica = mesh.coordinate("dpReplicate"), mesh.degree("dpReplicate")  # and the same parts of them
    model.island = mesh.coordinate("island")
    parallel = Parallel(
        model,
        mesh,
        GradientSync(roots, mesh, sharding.stage, replicas, reducer),
        ForwardRng({stage.index: stage for stage in stages} or {0: model}, mesh, device_type),
        chunks,
        compiled_cross_entropy() if compiled else partial(cross_entropy, group=vocabulary),
        [module for _, module in named(model, plan_of(model).auxiliary)],
    )
    if many_stages:
        parallel.stages = table
        sequence = of_tensor.sequence and mesh.degree("tp") > 1
        parallel.pipeline = pipeline.Pipeline(
            stages,
            mesh["pp"],
            of_pipeline,
            shape.micro_batches,
            parallel.summand,
            pipeline.Examples.of(shape, *ends, precision, mesh, sliced=sequence, split=vocabulary is not None),
        )
    return parallel


def _check_blocks(model: nn.Module, precision: str, recomputed: str, compiled: bool) -> None:
    """Raise ConfigError if an option works on blocks, and the model's plan names no blocks."""
    asked = ["precision fp8"] if precision == "fp8" else []
    asked += [f"recompute {recomputed}"] if recomputed != "None" else []
    asked += ["compile"] if compiled else []
    if asked and not plan_of(model).blocks:
        raise ConfigError(
            f"{' and '.join(asked)}: only for blocks, and {type(model).__name__} names none; give it an attribute "
            f"plan, a trainmaster.Plan with the path of an nn.ModuleList as its blocks"
        )


def _check_shared(model: nn.Module) -> None:
    """Raise ConfigError for a parameter that two blocks share, or a block and another part of the model.

    Each block is a unit of data parallelism, and so is the rest. A parameter that two units have would become two, each
    trained with its own gradients.
    """
    units = [[*block.modules()] for block in _blocks(model)]
    in_blocks = {id(module) for unit in units for module in unit}
    units.append([module for module in model.modules() if id(module) not in in_blocks])
    seen: set[int] = set()
    for unit in units:
        own = {id(p) for module in unit for p in module.parameters(recurse=False) if p.requires_grad}
        if shared := own & seen:
            name = next(name for name, p in model.named_parameters() if id(p) in shared)
            raise ConfigError(
                f"the model's parameter {name} is shared with another block, or with a part outside of blocks, and "
                f"each block is sharded, cast and summed separately; share a whole block, or leave blocks out of the "
                f"plan"
            )
        seen |= own


def _blocks(model: nn.Module) -> Iterable[nn.Module]:
    path = plan_of(model).blocks
    return model.get_submodule(path).children() if path else ()
