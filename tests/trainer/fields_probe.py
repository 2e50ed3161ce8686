"""A rank that trains one config after the other, and writes down what can be seen of each.

`test_every_field.py` starts it in place of our loop. It reads `asked.json` in the folder that OUTPUT_DIR names. Where
ranks talk to each other each training has a process of its own: a group of processes that is no more stalls the next.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.modules.module import register_module_forward_hook

from tests.trainer.forks import forked
from tests.trainer.parameter_groups import parameter_groups
from trainmaster.contract.config import TrainingConfig
from trainmaster.contract.wire import environment
from trainmaster.errors import TrainmasterError
from trainmaster.parallel.blocks import compiling
from trainmaster.rank.reporter import Reporter
from trainmaster.train import auto_micro_batch
from trainmaster.train.loop import Training

NUMBERS = ("loss", "grad_norm", "evaluation_loss")


def main() -> None:
    folder, rank = Path(os.environ[environment.OUTPUT_DIR]), int(os.environ["RANK"])
    # Where memory is ample the largest micro-batch is the whole share. What is estimated has tests of its own.
    auto_micro_batch._elsewhere = lambda config, ranks, budget: (1, 1)
    # So has what a compiler makes of a block; importing one takes seconds.
    compiling.prepare = lambda device_type: None
    torch.compile = _to_be_compiled
    for number, training in enumerate(json.loads((folder / "asked.json").read_text())):
        if os.environ["WORLD_SIZE"] == "1":
            _train(folder, rank, number, **training)
            continue
        pid = forked(lambda number=number, training=training: _train(folder, rank, number, **training))
        if os.waitpid(pid, 0)[1]:
            sys.exit(f"training {number} failed: {training}")


def _train(folder: Path, rank: int, number: int, port: int, config: dict[str, Any], build: bool) -> None:
    """Train one config, or only build it, with the ranks that meet at a store's port; write down what is seen of it."""
    output = folder / str(number)
    output.mkdir(exist_ok=True)
    os.environ["MASTER_PORT"] = str(port)
    os.environ[environment.CHECKPOINT_DIR] = str(output / "checkpoints")
    raw = json.dumps(config).replace("{data}", str(folder / "data")).replace("{output}", str(output))
    found = seen(TrainingConfig.model_validate_json(raw), output, rank, steps=not build)
    if rank == 0:
        (folder / f"found-{number}.json").write_text(json.dumps(found))


def _to_be_compiled(forward: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    @functools.wraps(forward)
    def compiled(*inputs: Any, **named: Any) -> Any:
        return forward(*inputs, **named)

    compiled.to_be_compiled = how
    return compiled


def seen(config: TrainingConfig, output: Path, rank: int, *, steps: bool) -> dict[str, Any]:
    """What can be seen of one training, in words and numbers that two of the same config have alike."""
    ended, built, noise = "", "", {}
    with passes() as passed:
        try:
            training = Training(config, Reporter(rank, 1, output=output))
            built = described(training)
            training.resume()
            if steps:
                training.run()
            noise = training.noise.state() if training.noise is not None else {}
        except TrainmasterError as error:
            ended = f"{type(error).__name__}: {error}"
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
    return {
        "built": built,
        "passes": hashlib.sha256(json.dumps(passed).encode()).hexdigest(),
        "numbers": [numbers(output), noise],
        "ended": ended,
        "files": sorted({shape(path.relative_to(output)) for path in output.rglob("*") if path.is_file()})
        + runs(config)
        + recorded(output),
    }


@contextmanager
def passes() -> Iterator[list[Any]]:
    """What goes into modules, and into attention, and comes out: shapes, and of whole numbers which ones."""
    found: list[Any] = []
    attention = F.scaled_dot_product_attention

    def told(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return None
        local = value.to_local() if hasattr(value, "to_local") else value
        whole = not local.is_floating_point() and local.device.type == "cpu"
        return [list(local.shape), hash(tuple(local.flatten().tolist())) if whole else 0]

    hook = register_module_forward_hook(
        lambda module, inputs, output: found.append(
            [type(module).__name__, told(inputs[0] if inputs else None), told(output)]
        )
    )

    def attended(q: Tensor, k: Tensor, *others: Any, **how: Any) -> Tensor:
        found.append(["attention", told(q), told(k)])
        return attention(q, k, *others, **how)

    F.scaled_dot_product_attention = attended
    try:
        yield found
    finally:
        F.scaled_dot_product_attention = attention
        hook.remove()


def described(training: Training) -> str:
    """The model that this rank trains, and what moves its parameters and gradients."""
    stages = training.parallel.pipeline.stages if training.parallel.pipeline is not None else []
    roots: list[nn.Module] = [training.model, *stages]
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)  # this process trains other configs, too
    lines = [torch.get_float32_matmul_precision(), f"deterministic {deterministic}"]
    for name, parameter in training.model.named_parameters():
        lines.append(f"{name} {type(parameter).__name__} {[*parameter.shape]} {getattr(parameter, 'placements', '')}")
    for module in (module for root in roots for module in root.modules()):
        lines.append(type(module).__name__)
        if hasattr(type(module).forward, "to_be_compiled"):
            lines.append("compiled")
        if isinstance(module, FSDPModule):
            lines += [
                f"{type(group.offload_policy).__name__} {group.post_forward_mesh_info is not None}"
                for group in parameter_groups(module)
            ]
    for stage in stages:
        lines.append(f"stage {stage.index} of {len(stage.blocks)} blocks")
    if training.parallel.pipeline is not None:
        lines.append(type(training.parallel.pipeline._schedule).__name__)
    replicas = training.parallel.sync.replicas
    lines += [str(len(bucket.parameters)) for bucket in (replicas._buckets if replicas is not None else [])]
    return "\n".join(lines)


def numbers(output: Path) -> list[Any]:
    """Of steps and evaluations, and what the state is at the end."""
    file, final = output / "metrics.jsonl", output / "final.json"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    digest = json.loads(final.read_text())["digest"] if final.exists() else ""
    return [[line["step"], *(line.get(name) for name in NUMBERS)] for line in lines] + [digest]


def shape(path: Path) -> str:
    """The first part of a file's place, of checkpoints the first two: below that names are made up."""
    return "/".join(path.parts[: 2 if path.parts[0] == "checkpoints" else 1])


def recorded(output: Path) -> list[str]:
    """The steps that a timeline shows."""
    found: set[str] = set()
    for file in output.glob("profile/*/*.trace.json.gz"):
        with gzip.open(file) as opened:
            names = (event.get("name", "") for event in json.load(opened)["traceEvents"])
            found |= {name for name in names if name.startswith("trainmaster step")}
    return sorted(found)


def runs(config: TrainingConfig) -> list[str]:
    """The experiments and runs of MLflow."""
    if config.loggers is None or config.loggers.mlflow is None:
        return []
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=config.loggers.mlflow.trackingUri)
    experiments = {experiment.experiment_id: experiment.name for experiment in client.search_experiments()}
    return sorted(
        f"experiment {experiments[run.info.experiment_id]} run {run.info.run_name}"
        for run in client.search_runs([*experiments])
    )


if __name__ == "__main__":
    main()
