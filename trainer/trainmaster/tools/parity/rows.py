"""The rows of the parity table: the ways to train that are compared with one process."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster.contract.config import AXES, ParallelismConfig

LOSS_TOLERANCE = 1e-6
"""Relative tolerance of the loss of exact rows, which compute in fp32."""

LOSSY = {"bf16": 2e-3, "fp16": 2e-4, "fp8": 1e-2}
"""Relative tolerances of the loss, by precision."""

COMPRESSED = {"fp16": 5e-5, "bf16": 1e-4, "PowerSGD": 3e-2, "TopK": 6e-2}
"""Relative tolerances of the loss, by the method of compression."""

UPDATE_TOLERANCE = 5e-5
"""Tolerance relative to a parameter's update, which is smaller than the parameter: the rounding error of a 4.0 that
moved by 0.1 is 5e-6."""

MUON = {"name": "muon", "lr": 0.02}
MUON_UPDATE_TOLERANCE = 5e-4  # a matrix' smallest directions, rounding among them, are made as large as the others


@dataclass(frozen=True)
class Row:
    """One way to train. `covers` says what only this row tests."""

    name: str
    parallelism: Mapping[str, Any] = field(default_factory=dict, hash=False)
    accumulation: int = 1
    model: str = "gpt"
    covers: str = ""
    devices: int = 0  # of one process, instead of ranks
    training: Mapping[str, Any] = field(default_factory=dict, hash=False)  # other fields of the job
    tolerance: float | None = None  # of the loss, relative, where a row isn't exact; then it must converge
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)  # options of the model, other than its sizes
    islands: int = 0  # that one process plays one after the other; `training` says how they agree
    update: float = UPDATE_TOLERANCE  # the largest difference of a parameter, relative to how far it moved

    @property
    def config(self) -> ParallelismConfig:
        return ParallelismConfig.model_validate(dict(self.parallelism))

    @property
    def ranks(self) -> int:
        return 1 if self.devices else math.prod(self.parallelism.get(axis, 1) for axis in AXES)

    def __str__(self) -> str:
        axes = " ".join(f"{a}={self.parallelism[a]}" for a in (*AXES, "ep") if a in self.parallelism)
        axes += f" devices={self.devices}" if self.devices else ""
        axes += "".join(f" {name}={value}" for name, value in _leaves(self.training))
        return f"{self.name} {self.model} {axes} accumulation={self.accumulation}"


def _leaves(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        yield from _leaves(value) if isinstance(value, Mapping) else [(name, value)]


def _rows() -> Iterator[Row]:
    yield from _data_parallel()
    yield from _tensor()
    yield from _pipeline()
    yield from _context()
    yield from _experts()
    yield from _products()
    yield from _encoder()
    for axis in ("dpReplicate", "dpShard"):
        yield Row(f"M2-cnn-{axis}", {axis: 2}, 2, "cnn", "images and labels, groups normalized")
    yield from _recompute()
    yield from _reversible()
    yield from _precision()
    yield from _compression()
    yield from _islands()
    yield from _muon()
    yield from _compile()


def _data_parallel() -> Iterator[Row]:
    for n in (2, 3, 4):
        yield Row("P1-replicate", {"dpReplicate": n}, 1, covers="one sum of gradients over replicas")
        yield Row("P1-replicate", {"dpReplicate": n}, 2, covers="gradients summed after the last micro-batch alone")
    for n in (2, 4):
        yield Row("P2-fsdp2", {"dpShard": n}, 1, covers="parameters gathered block by block")
        yield Row("P2-fsdp2", {"dpShard": n}, 2, covers="gradients scattered after each micro-batch")
    yield Row("P2-fsdp2", {"dpShard": 2}, 1, "llama", covers="parameters of other shapes")
    hsdp = {"dpReplicate": 2, "dpShard": 2}
    yield Row("P2-hsdp", hsdp, 1, covers="shards summed over replicas")
    yield Row("P2-hsdp", hsdp, 2, covers="shards summed over replicas after the last micro-batch alone")
    yield Row("P2-zero-1", {"dpShard": 2, "sharding": {"stage": 1}}, 2, covers="whole gradients until the last")
    yield Row("P2-zero-2", {"dpShard": 2, "sharding": {"stage": 2}}, 2, covers="parameters kept between micro-batches")
    yield Row("P2-zero-1-hsdp", {**hsdp, "sharding": {"stage": 1}}, 2, covers="both sums after the last micro-batch")
    yield Row("P2-offload", {"dpShard": 2, "sharding": {"offload": True}}, 2, covers="shards in host memory")


def _tensor() -> Iterator[Row]:
    whole = {"gpt": "heads in one matrix", "llama": "three matrices that share their input"}
    for model, covers in whole.items():
        for n in (2, 4):
            yield Row("P4-tensor", {"tp": n}, 1, model, covers)
        for sequence in (False, True):
            for vocabulary in (False, True):
                options = {"sequence": sequence, "vocabulary": vocabulary}
                name = f"P4-tensor{'-sequence' if sequence else ''}{'-vocabulary' if vocabulary else ''}"
                stream = "slices of the sequence" if sequence else "whole sequences"
                loss = "the loss of a part of the logits" if vocabulary else "joined logits"
                yield Row(name, {"tp": 2, "tensor": options}, 2, model, f"{stream}, {loss}")


def _pipeline() -> Iterator[Row]:
    for n in (2, 3):
        layers, replicas = "layers on devices of one process", "a batch over devices of one process"
        yield Row("P3-layers", {"pp": n}, 1, covers=layers, devices=n)
        yield Row("P3-replicas", {"dpReplicate": n}, 2, covers=f"{replicas}, accumulated", devices=n)
    yield Row("P3-replicas", {"dpReplicate": 2}, 1, "moe", "a balance loss of each part", devices=2)
    one = {"schedule": "GPipe"}
    yield Row("P3-layers", {"pp": 2, "pipeline": one}, 1, covers="layers on several ranks, without micro-batches")
    for schedule in ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBV", "DualPipeV"):
        for n in (2, 4):
            if n == 2 or schedule in ("GPipe", "1F1B"):
                stages = "a first and a last stage" if n == 2 else "stages that are neither first nor last"
                yield Row(f"P5-{schedule}", {"pp": n, "pipeline": {"schedule": schedule}}, 4, covers=stages)
    yield Row("P5-1F1B", {"pp": 2}, 4, "llama", "another stem and tail")
    parameters = {"balance": "Parameters"}
    yield Row("P9-parameters", {"pp": 3, "pipeline": parameters}, 3, covers="stages of other sizes")
    profile = {"balance": "Profile"}
    yield Row("P9-profile", {"pp": 3, "pipeline": profile}, 3, covers="stages cut by time, alike on all ranks")


def _context() -> Iterator[Row]:
    methods = {"AllGather": "gathered keys and values", "Ulysses": "heads exchanged for the sequence"}
    for method, covers in methods.items():
        for balance in ("HeadTail", "None"):
            options = {"method": method, "balance": balance}
            yield Row(f"P6-{method}-{balance}", {"cp": 2, "context": options}, 1, covers=f"{covers}, {balance}")
        yield Row(f"P6-{method}", {"cp": 2, "context": {"method": method}}, 2, "llama", f"{covers}, accumulated")
        yield Row(f"P6-{method}", {"cp": 4, "context": {"method": method}}, 1, covers=f"{covers}, of four ranks")


def _experts() -> Iterator[Row]:
    plain = {"tp": 2, "tensor": {"sequence": False}}
    rows: list[tuple[str, dict[str, Any], int, str]] = [
        ("dense", {"dpShard": 2}, 2, "experts as any other parameters"),
        ("dense-replicate", {"dpReplicate": 2}, 1, "replicated experts"),
        ("dense-tensor", {"tp": 2}, 1, "experts of which each rank has a part"),
        ("dense-tensor-plain", plain, 1, "the same, on whole sequences"),
        ("dense-context", {"cp": 2}, 1, "a balance over parts of a sequence"),
        ("dense-pipeline", {"pp": 2}, 4, "a balance loss in each stage"),
        ("expert", {"dpShard": 2, "ep": 2}, 2, "tokens that travel"),
        ("expert", {"dpShard": 4, "ep": 4}, 1, "one expert on each rank"),
        ("expert-shard", {"dpShard": 4, "ep": 2}, 1, "sharded experts"),
        ("expert-replicate", {"dpReplicate": 2, "dpShard": 2, "ep": 2}, 1, "replicas of experts"),
        ("expert-context", {"cp": 2, "ep": 2}, 1, "experts dealt out over parts of a sequence"),
        ("expert-shard-context", {"dpShard": 2, "cp": 2, "ep": 4}, 1, "experts dealt out over both"),
        ("expert-tensor", {"dpShard": 2, "tp": 2, "ep": 2}, 1, "experts dealt out and split"),
        ("expert-pipeline", {"pp": 2, "dpShard": 2, "ep": 2}, 4, "tokens that travel within a stage"),
    ]
    for name, parallelism, accumulation, covers in rows:
        yield Row(f"P7-{name}", parallelism, accumulation, "moe", covers)
    everything = {"pp": 2, "dpShard": 2, "tp": 2, "ep": 2}
    yield Row("P8-4D-expert", everything, 4, "moe", "experts dealt out and split, in stages")


def _products() -> Iterator[Row]:
    yield Row("P8-replicate-tensor", {"dpReplicate": 2, "tp": 2}, 2, covers="replicas of parts of matrices")
    yield Row("P8-shard-tensor", {"dpShard": 2, "tp": 2}, 2, covers="shards of parts of matrices")
    yield Row("P8-shard-tensor", {"dpShard": 2, "tp": 2}, 1, "llama", "the same, of other shapes")
    yield Row("P8-replicate-context", {"dpReplicate": 2, "cp": 2}, 1, covers="sharding over cp alone, in replicas")
    yield Row("P8-shard-context", {"dpShard": 2, "cp": 2}, 1, covers="a group for cp within dpShard x cp")
    yield Row("P8-context-tensor", {"cp": 2, "tp": 2}, 1, covers="attention of split heads over parts of a sequence")
    ulysses = {"method": "Ulysses"}
    yield Row("P8-context-tensor-ulysses", {"cp": 2, "tp": 2, "context": ulysses}, 1, covers="split heads, exchanged")
    for schedule in ("1F1B", "Interleaved1F1B", "ZBV"):
        pipeline = {"schedule": schedule}
        for name, axis, covers in [
            ("replicate", "dpReplicate", "stages, replicated"),
            ("shard", "dpShard", "stages, gathered once"),
            ("tensor", "tp", "a stream that travels in slices"),
            ("context", "cp", "stages that know their positions"),
        ]:
            yield Row(f"P8-{schedule}-{name}", {"pp": 2, axis: 2, "pipeline": pipeline}, 4, covers=covers)
    yield Row("P8-3D", {"pp": 2, "dpShard": 2, "tp": 2}, 4, covers="stages of shards of parts")
    zbv = {"schedule": "ZBV"}
    yield Row("P8-3D-ZBV", {"pp": 2, "dpShard": 2, "tp": 2, "pipeline": zbv}, 4, covers="the same, two stages a rank")
    yield Row("P8-hsdp-tensor", {"dpReplicate": 2, "dpShard": 2, "tp": 2}, 1, covers="replicas of shards of parts")
    yield Row("P8-shard-context-tensor", {"dpShard": 2, "cp": 2, "tp": 2}, 1, covers="a group for cp beside tp")
    yield Row("P8-4D", {"pp": 2, "cp": 2, "tp": 2}, 4, covers="sharding over cp in stages of parts")


def _encoder() -> Iterator[Row]:
    whole = {"tp": 2, "tensor": {"sequence": False, "vocabulary": False}}
    rows: list[tuple[str, dict[str, Any], int, str]] = [
        ("replicate", {"dpReplicate": 3}, 2, "masked tokens that other ranks count"),
        ("shard", {"dpShard": 2}, 2, "biases and embeddings of positions, gathered"),
        ("tensor", {"tp": 2}, 1, "positions of slices of the sequence"),
        ("tensor-plain", whole, 2, "positions of whole sequences"),
        ("1F1B", {"pp": 2}, 4, "a stem of two parts"),
        ("3D", {"pp": 2, "dpShard": 2, "tp": 2}, 4, "all of it at once"),
    ]
    for name, parallelism, accumulation, covers in rows:
        yield Row(f"M1-bert-{name}", parallelism, accumulation, "bert", covers)


def _recompute() -> Iterator[Row]:
    rows: list[tuple[str, dict[str, Any], int, str, str, str]] = [
        ("replicate", {"dpReplicate": 2}, 2, "gpt", "Full", "blocks computed twice"),
        ("shard", {"dpShard": 2}, 2, "llama", "Full", "parameters gathered once for both"),
        ("shard", {"dpShard": 2}, 1, "gpt", "Selective", "products kept"),
        ("tensor", {"tp": 2}, 1, "gpt", "Full", "exchanges within a block repeated"),
        ("tensor", {"tp": 2}, 1, "llama", "Selective", "the same, with products kept"),
        ("context", {"cp": 2}, 1, "gpt", "Full", "keys and values gathered again"),
        ("expert", {"dpShard": 2, "ep": 2}, 1, "moe", "Full", "tokens that travel again"),
        ("1F1B", {"pp": 2}, 4, "gpt", "Full", "stages that keep their inputs"),
        ("ZBV", {"pp": 2, "pipeline": {"schedule": "ZBV"}}, 4, "gpt", "Full", "a backward pass in two parts"),
        ("4D", {"pp": 2, "cp": 2, "tp": 2}, 4, "gpt", "Selective", "all of it at once"),
    ]
    for name, parallelism, accumulation, model, how, covers in rows:
        yield Row(f"E5-recompute-{name}", parallelism, accumulation, model, covers, training={"recompute": how})


def _reversible() -> Iterator[Row]:
    """Yield rows that are compared with the same model of two streams without recomputation."""
    rows: list[tuple[str, dict[str, Any], int, str, str]] = [
        ("replicate", {"dpReplicate": 2}, 2, "gpt", "gradients from backward passes within one"),
        ("shard", {"dpShard": 2}, 2, "llama", "parameters gathered once for both passes"),
        ("hsdp", {"dpReplicate": 2, "dpShard": 2}, 1, "gpt", "shards summed over replicas"),
        ("tensor", {"tp": 2}, 1, "gpt", "two streams in slices of the sequence"),
        ("tensor", {"tp": 2}, 1, "llama", "the same, of regions"),
        ("context", {"cp": 2}, 1, "gpt", "keys and values gathered again"),
        ("1F1B", {"pp": 2}, 4, "gpt", "a chain of each stage"),
        ("ZBV", {"pp": 2, "pipeline": {"schedule": "ZBV"}}, 4, "gpt", "stages that are neighbours on a rank"),
        ("4D", {"pp": 2, "cp": 2, "tp": 2}, 4, "gpt", "all of it at once"),
    ]
    streams = {"reversible": True}
    for name, parallelism, accumulation, model, covers in rows:
        training = {"recompute": "Reversible"}
        yield Row(f"E6-reversible-{name}", parallelism, accumulation, model, covers, 0, training, None, streams)
    training = {"recompute": "Reversible", "precision": "bf16"}
    covers = "inputs as exact as their type"
    yield Row("E6-reversible-bf16", {"dpShard": 2}, 2, "gpt", covers, 0, training, LOSSY["bf16"], streams)


def _precision() -> Iterator[Row]:
    rows: list[tuple[str, dict[str, Any], int, str, str]] = [
        ("replicate", {"dpReplicate": 2}, 2, "gpt", "parameters cast, gradients summed in fp32"),
        ("shard", {"dpShard": 2}, 2, "gpt", "parameters gathered as cast"),
        ("hsdp", {"dpReplicate": 2, "dpShard": 2}, 1, "llama", "shards of casts, replicated"),
        ("tensor", {"tp": 2}, 1, "gpt", "activations exchanged as cast"),
        ("context", {"cp": 2}, 1, "gpt", "keys and values gathered as cast"),
        ("1F1B", {"pp": 2}, 4, "gpt", "a cast stream between stages"),
        ("expert", {"dpShard": 2, "ep": 2}, 1, "moe", "cast tokens that travel"),
        ("3D", {"pp": 2, "dpShard": 2, "tp": 2}, 4, "gpt", "all of it at once"),
    ]
    for precision, adds in (("bf16", ""), ("fp16", "; one loss scale for all"), ("fp8", "; products in 8 bits")):
        for name, parallelism, accumulation, model, covers in rows:
            covers += adds
            training = {"precision": precision}
            yield Row(f"E2-{precision}-{name}", parallelism, accumulation, model, covers, 0, training, LOSSY[precision])


def _compression() -> Iterator[Row]:
    def row(name: str, parallelism: dict[str, Any], accumulation: int, covers: str, how: dict[str, Any]) -> Row:
        model = "moe" if "expert" in name else "gpt"
        tolerance = COMPRESSED[how["method"]] if how.get("share") != 1 else None
        training: dict[str, Any] = {"communication": {"compression": how}}
        if "bf16-blocks" in name:
            training["precision"], tolerance = "bf16", LOSSY["bf16"]
        return Row(f"E7-{name}", parallelism, accumulation, model, covers, 0, training, tolerance)

    replicas, hsdp = {"dpReplicate": 2}, {"dpReplicate": 2, "dpShard": 2}
    everything = {"method": "TopK", "share": 1}  # in pieces, and exact
    yield row("replicate", {"dpReplicate": 3}, 2, "gradients added rank by rank", everything)
    yield row("hsdp", hsdp, 2, "shards, after all micro-batches", everything)
    yield row("zero-1-hsdp", {**hsdp, "sharding": {"stage": 1}}, 2, "shards of whole gradients", everything)
    yield row("tensor", {**replicas, "tp": 2}, 1, "parts of matrices, which have a mesh of their own", everything)
    yield row("context", {**replicas, "cp": 2}, 1, "shards over cp", everything)
    yield row("1F1B", {**replicas, "pp": 2}, 4, "the gradients of a stage", everything)
    yield row("expert", {**hsdp, "ep": 2}, 1, "experts, which have a mesh of their own", everything)
    yield row("3D", {**replicas, "pp": 2, "tp": 2}, 4, "parts in stages", everything)
    yield row("bf16-blocks", replicas, 1, "parameters cast by one rank alone", everything)
    for method in ("fp16", "bf16"):
        yield row(method, replicas, 1, f"gradients summed in {method}", {"method": method})
    yield row("fp16-hsdp", hsdp, 1, "shards summed in fp16", {"method": "fp16"})
    for name, parallelism, accumulation, covers in [
        ("replicate", replicas, 2, "what isn't sent comes later"),
        ("hsdp", hsdp, 1, "of shards"),
        ("1F1B", {**replicas, "pp": 2}, 4, "of stages"),
        ("tensor", {**replicas, "tp": 2}, 1, "of parts of matrices"),
    ]:
        yield row(f"PowerSGD-{name}", parallelism, accumulation, covers, {"method": "PowerSGD", "rank": 4})
        yield row(f"TopK-{name}", parallelism, accumulation, covers, {"method": "TopK", "share": 0.1})


def _islands() -> Iterator[Row]:
    rows: list[tuple[str, dict[str, Any], int, str, dict[str, Any]]] = [
        ("local-sgd", {}, 1, "the mean of parameters", {"every": 3, "lr": 1.0, "momentum": 0.0}),
        ("diloco", {}, 2, "an outer optimizer with momentum", {"every": 3}),
        ("heavy-ball", {}, 1, "momentum that doesn't look ahead", {"every": 2, "nesterov": False}),
        ("fragments", {}, 1, "parts of the model in turn", {"every": 4, "fragments": 3}),
        ("replicate", {"dpReplicate": 2}, 2, "islands of replicas", {"every": 3}),
        ("shard", {"dpShard": 2}, 1, "shards of each island, exchanged as they lie", {"every": 3}),
        ("tensor", {"tp": 2}, 1, "parts of matrices, exchanged as they lie", {"every": 3}),
        ("context", {"cp": 2}, 1, "sequences within an island", {"every": 3}),
        ("1F1B", {"pp": 2}, 4, "stages of each island, exchanged among each other", {"every": 3}),
    ]
    for name, parallelism, accumulation, covers, outer in rows:
        training = {"communication": {"outer": outer}}
        yield Row(f"E8-{name}", {"island": 2, **parallelism}, accumulation, "gpt", covers, 0, training)
    three = {"communication": {"outer": {"every": 3}}}
    yield Row("E8-diloco", {"island": 3}, 1, "gpt", "the mean of three", 0, three)


def _muon() -> Iterator[Row]:
    rows: list[tuple[str, dict[str, Any], int, str, str]] = [
        ("replicate", {"dpReplicate": 2}, 2, "gpt", "whole matrices"),
        ("shard", {"dpShard": 3}, 1, "llama", "matrices joined from rows, and dealt out"),
        ("hsdp", {"dpReplicate": 2, "dpShard": 2}, 2, "gpt", "the same, in replicas"),
        ("tensor", {"tp": 2}, 1, "gpt", "matrices joined from rows or columns"),
        ("shard-tensor", {"dpShard": 2, "tp": 2}, 1, "llama", "parts of parts, joined in two hops"),
        ("context", {"cp": 2}, 1, "gpt", "shards over cp"),
        ("1F1B", {"pp": 2, "dpShard": 2}, 4, "gpt", "the matrices of a stage"),
        ("expert-shard", {"dpShard": 4, "ep": 2}, 1, "moe", "experts, each a matrix of its own"),
        ("expert-shard", {"dpShard": 2}, 1, "moe", "stacks of experts, which are whole where they are cut"),
        ("expert-tensor", {"dpShard": 4, "tp": 2, "ep": 4}, 1, "moe", "parts of experts, joined"),
        ("cnn", {"dpShard": 2}, 1, "cnn", "convolutions, each output a row"),
    ]
    for name, parallelism, accumulation, model, covers in rows:
        yield Row(
            f"E8-muon-{name}",
            parallelism,
            accumulation,
            model,
            covers,
            0,
            {"optimizer": MUON},
            update=MUON_UPDATE_TOLERANCE,
        )


def _compile() -> Iterator[Row]:
    rows: list[tuple[str, dict[str, Any], int, str, dict[str, Any], str]] = [
        ("replicate", {"dpReplicate": 2}, 2, "gpt", {}, "compiled blocks with plain parameters"),
        ("shard", {"dpShard": 2}, 1, "llama", {}, "compiled blocks whose parameters come and go"),
        ("recompute", {"dpShard": 2}, 2, "gpt", {"recompute": "Full"}, "blocks compiled twice over"),
        ("products", {"dpShard": 2}, 1, "llama", {"recompute": "Selective"}, "the same, with products kept"),
        ("1F1B", {"pp": 2}, 4, "bert", {}, "compiled blocks of stages"),
        ("bf16", {"dpShard": 2}, 1, "gpt", {"precision": "bf16"}, "compiled casts"),
    ]
    for name, parallelism, accumulation, model, training, covers in rows:
        tolerance = LOSSY["bf16"] if "precision" in training else None
        how = {"compile": True, **training}
        yield Row(f"E9-compile-{name}", parallelism, accumulation, model, covers, 0, how, tolerance)


ROWS = list(_rows())


def reference(row: Row) -> Row:
    """Return the row of one process that a row is compared with, with the same model and optimizer."""
    if count := row.parallelism.get("island", 0):
        return Row("one-process", model=row.model, options=row.options, islands=count, training=row.training)
    same = {name: value for name, value in row.training.items() if name == "optimizer"}
    return Row("one-process", model=row.model, options=row.options, training=same)


def select(patterns: Sequence[str]) -> list[Row]:
    """Return the rows whose name contains one of the patterns, or all rows without any pattern."""
    return [row for row in ROWS if not patterns or any(fnmatch.fnmatch(str(row), f"*{p}*") for p in patterns)]
