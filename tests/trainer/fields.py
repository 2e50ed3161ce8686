"""What each field of the training config changes: a value of it, and where the change shows.

A row is trained twice, without and with its value; the two have to differ in what it names: the built model, what
passes through its modules, the numbers of steps, how the run ends, or the files that it leaves.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from trainmaster.contract.config import TrainingConfig
from trainmaster_operator.api.validation.partial_model import model_in

Shows = Literal["built", "passes", "numbers", "ended", "files"]


@dataclass(frozen=True)
class Row:
    """A field, a value that isn't the one that it has without it, and where that shows. `given`: fields beside it."""

    field: str
    value: Any
    shows: Shows
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def build(self) -> bool:
        """Whether it is seen before the first step."""
        return self.shows == "built"

    def without(self) -> dict[str, Any]:
        """The training config that the value is not in."""
        return _with(BASE, self.given)

    def trained(self) -> dict[str, Any]:
        """The training config with the value."""
        return _with(self.without(), {self.field: self.value})


BASE: dict[str, Any] = {
    "model": {"options": {"layers": 2, "width": 16, "heads": 2, "context": 16}},
    "data": {"path": "{data}/one"},
    "steps": 3,
    "batch": {"global": 4},
    "optimizer": {"lr": 0.01},
    "device": "CPU",
}
LLAMA = {"model.name": "llama"}
MOE = {
    "model.name": "moe",
    "model.options": {"layers": 2, "width": 16, "heads": 2, "context": 16, "hidden": 16, "experts": 2},
}
SGD = {"optimizer.name": "sgd"}
SCALED = {"batch.scaling": {"ranks": 2, "learningRate": "Constant"}}
EVALUATED = {"evaluation": {"every": 1, "data": {"path": "{data}/two"}}}
STOPPING = {**EVALUATED, "steps": 6, "evaluation.stop": {"patience": 1, "minDelta": 1e6}}
# Any batch that is a little harder than those before: such a run learns nothing.
WATCHED = {"steps": 12, "optimizer.lr": 1e-9, "divergence.window": 4}
TENSORBOARD = {"loggers.tensorBoard": {"directory": "{output}/here"}}
MLFLOW = {"loggers.mlflow": {"trackingUri": "{output}/there", "experiment": "one", "run": "one"}}
OF_ONE_RANK = [
    Row("model.name", "llama", "built"),
    Row("model.options", {"layers": 3, "width": 16, "heads": 2, "context": 16}, "built"),
    Row("data.source", "tokens", "numbers"),
    Row("data.path", "{data}/two", "numbers"),
    Row("data.options", {"glob": "b.txt"}, "numbers"),
    Row("steps", 2, "numbers"),
    Row("batch.global", 2, "numbers"),
    Row("batch.micro", 1, "passes"),
    Row("batch.autoMicro", True, "passes"),
    Row("batch.noiseScale.every", 2, "numbers", {"batch.micro": 2, "batch.noiseScale": {"every": 1}}),
    Row("batch.scaling.ranks", 4, "numbers", SCALED),
    Row("batch.scaling.learningRate", "Linear", "numbers", SCALED),
    Row("optimizer.name", "sgd", "numbers"),
    Row("optimizer.lr", 0.1, "numbers"),
    Row("optimizer.betas", [0.5, 0.6], "numbers"),
    Row("optimizer.eps", 0.1, "numbers"),
    Row("optimizer.momentum", 0.1, "numbers", SGD),
    Row("optimizer.weightDecay", 10.0, "numbers"),
    Row("optimizer.warmupSteps", 2, "numbers"),
    Row("optimizer.schedule", "Constant", "numbers"),
    Row("optimizer.minLrRatio", 0.9, "numbers"),
    Row("optimizer.clipNorm", 0.01, "numbers", SGD),
    Row("device", "MPS", "ended"),
    Row("precision", "bf16", "numbers"),
    Row("matmulPrecision", "Medium", "built"),
    Row("deterministic", True, "built"),
    Row("recompute", "Full", "passes"),
    Row("compile", True, "built"),
    Row("checkpoint.every", 2, "files", {"checkpoint.every": 1}),
    Row("checkpoint.keep", 1, "files", {"checkpoint.every": 1}),
    Row("checkpoint.keepBest", True, "files", EVALUATED),
    Row("divergence.spikeFactor", 1.0001, "ended", {**WATCHED, "divergence.normSpikeFactor": 1e6}),
    Row("divergence.normSpikeFactor", 1.0001, "ended", {**WATCHED, "divergence.spikeFactor": 1e6}),
    Row("divergence.window", 1000, "ended", {**WATCHED, "divergence.spikeFactor": 1.0001}),
    Row("evaluation.every", 2, "numbers", EVALUATED),
    Row("evaluation.data.source", "tokens", "numbers", EVALUATED),
    Row("evaluation.data.path", "{data}/one", "numbers", EVALUATED),
    Row("evaluation.data.options", {"glob": "b.txt"}, "numbers", EVALUATED),
    Row("evaluation.samples", 1, "numbers", EVALUATED),
    Row("evaluation.stop.patience", 2, "numbers", STOPPING),
    Row("evaluation.stop.minDelta", 0, "numbers", STOPPING),
    Row("loggers.tensorBoard.directory", "{output}/elsewhere", "files", TENSORBOARD),
    Row("loggers.mlflow.trackingUri", "{output}/elsewhere", "files", MLFLOW),
    Row("loggers.mlflow.experiment", "two", "files", MLFLOW),
    Row("loggers.mlflow.run", "two", "files", MLFLOW),
    Row("profile.steps", [1, 2], "files", {"profile": {"steps": [1, 1]}}),
    Row("seed", 1, "numbers"),
]
PIPELINE = {"parallelism": {"pp": 2}, "batch.global": 8, "batch.micro": 1}
INTERLEAVED = {**PIPELINE, "parallelism.pipeline": {"schedule": "Interleaved1F1B", "stagesPerRank": 2}}
DEEP = {"model.options": {"layers": 6, "width": 16, "heads": 2, "context": 16}}
# The rows of an embedding are many parameters, and no operations.
TOP_HEAVY = {
    **LLAMA,
    "model.options": {"layers": 4, "width": 16, "heads": 2, "context": 16, "vocabulary": 2000},
}
WIDE = {"model.options": {"layers": 2, "width": 192, "heads": 2, "context": 16}}
TENSOR = {"parallelism": {"tp": 2, "tensor": {}}}
CONTEXT = {"parallelism": {"cp": 2, "context": {}}}
SHARDED = {"parallelism": {"dpShard": 2, "sharding": {}}}
ISLANDS = {"parallelism": {"island": 2}, "steps": 7, "communication.outer": {"every": 2}}


def _compressed(**compression: Any) -> dict[str, Any]:
    return {"communication.compression": compression}


OF_TWO_RANKS = [
    Row("parallelism.dpReplicate", 1, "built"),
    Row("parallelism.dpShard", 2, "built"),
    Row("parallelism.island", 2, "numbers", {"steps": 5, "communication": {}}),
    Row("parallelism.pp", 2, "built"),
    Row("parallelism.cp", 2, "built"),
    Row("parallelism.tp", 2, "built"),
    Row("parallelism.ep", 2, "built", {**MOE, "parallelism": {"dpShard": 2}}),
    Row("parallelism.pipeline.schedule", "GPipe", "built", {**PIPELINE, "parallelism.pipeline": {}}),
    Row("parallelism.pipeline.stagesPerRank", 3, "built", {**INTERLEAVED, **DEEP}),
    Row("parallelism.pipeline.balance", "Parameters", "built", {**PIPELINE, **TOP_HEAVY, "parallelism.pipeline": {}}),
    Row("parallelism.tensor.sequence", False, "passes", TENSOR),
    Row("parallelism.tensor.vocabulary", False, "passes", TENSOR),
    Row("parallelism.context.method", "Ulysses", "passes", CONTEXT),
    Row("parallelism.context.balance", "None", "passes", CONTEXT),
    Row("parallelism.sharding.stage", 2, "built", SHARDED),
    Row("parallelism.sharding.offload", True, "built", SHARDED),
    Row("communication.bucketMiB", 1, "built", WIDE),
    Row("communication.compression.method", "fp16", "numbers", _compressed(method="bf16")),
    Row("communication.compression.rank", 1, "numbers", _compressed(method="PowerSGD", rank=2)),
    Row("communication.compression.share", 0.5, "numbers", _compressed(method="TopK", share=0.01)),
    Row("communication.compression.warmupSteps", 2, "numbers", _compressed(method="TopK", share=0.01)),
    Row("communication.outer.every", 3, "numbers", ISLANDS),
    Row("communication.outer.lr", 0.1, "numbers", ISLANDS),
    Row("communication.outer.momentum", 0.1, "numbers", ISLANDS),
    Row("communication.outer.nesterov", False, "numbers", ISLANDS),
    Row("communication.outer.fragments", 2, "numbers", ISLANDS),
    Row("communication.outer.send", "bf16", "numbers", ISLANDS),
]
ROWS = {1: OF_ONE_RANK, 2: OF_TWO_RANKS}
"""By the number of ranks that they are trained with."""


def leaves(model: type[BaseModel] = TrainingConfig, above: str = "") -> Iterator[str]:
    """Yield the path of each field that holds no further model."""
    for name, info in model.model_fields.items():
        path = f"{above}{info.alias or name}"
        inner = model_in(info.annotation)
        if inner is None:
            yield path
        else:
            yield from leaves(inner, f"{path}.")


def _with(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(config)
    for path, value in changes.items():
        *above, last = path.split(".")
        place = changed
        for part in above:
            place = place.setdefault(part, {})
        place[last] = copy.deepcopy(value)
    return changed
