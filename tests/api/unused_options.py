"""Options that nothing would obey, and the same where something does: changes of a job."""

from __future__ import annotations

from typing import Any

PLAIN = {"spec__training__parallelism": {"dpReplicate": 4}}
TRAINING = "spec.training"


def optimizer(**fields: Any) -> dict[str, Any]:
    return {"spec__training__optimizer": fields}


def parallelism(**fields: Any) -> dict[str, Any]:
    return {"spec__training__parallelism": fields}


REFUSED: list[tuple[dict[str, Any], str]] = [
    (optimizer(momentum=0.9), f"{TRAINING}.optimizer.momentum: adamw has betas and no momentum"),
    (optimizer(name="sgd", betas=[0.9, 0.99]), f"{TRAINING}.optimizer.betas: sgd has no such option"),
    (optimizer(name="sgd", eps=1e-6), f"{TRAINING}.optimizer.eps: sgd has no such option"),
    (
        optimizer(schedule="Constant", minLrRatio=0.2),
        f"{TRAINING}.optimizer.minLrRatio: it has no effect with schedule Constant",
    ),
    (
        {"spec__training__divergence": {"window": 50}},
        f"{TRAINING}.divergence.window: it has no effect without spikeFactor or normSpikeFactor",
    ),
    (
        parallelism(pp=1, pipeline={"balance": "Parameters"}),
        f"{TRAINING}.parallelism.pipeline: it configures axis pp, but pp is 1",
    ),
    (parallelism(tp=1, tensor={}), f"{TRAINING}.parallelism.tensor: it configures axis tp, but tp is 1"),
    (parallelism(cp=1, context={}), f"{TRAINING}.parallelism.context: it configures axis cp, but cp is 1"),
    (
        parallelism(tensor={"sequence": False}),
        f"{TRAINING}.parallelism: tensor configures axis tp, but tp isn't set",
    ),
    (
        parallelism(sharding={"offload": True}),
        f"{TRAINING}.parallelism.sharding: it configures shards, but dpShard x cp is 1",
    ),
    (
        parallelism(pp=2, dpShard=2, sharding={"stage": 2}),
        f"{TRAINING}.parallelism.sharding.stage: in a pipeline all values of stage do the same",
    ),
    (
        {**PLAIN, "spec__training__communication": {"bucketMiB": 50, "compression": {"method": "bf16"}}},
        f"{TRAINING}.communication.bucketMiB: compression sends all gradients of a step at once; leave it out",
    ),
    (
        {**PLAIN, "spec__training__communication": {"bucketMiB": 50}, "spec__training__precision": "bf16"},
        f"{TRAINING}.communication.bucketMiB: gradients travel block by block with precision bf16; leave it out",
    ),
    (
        {**parallelism(dpShard=4), "spec__training__communication": {"bucketMiB": 50}},
        f"{TRAINING}.communication.bucketMiB: gradients of replicas travel in buckets, and dpReplicate is 1",
    ),
    (
        {**parallelism(dpShard=2), "spec__training__communication": {"bucketMiB": 50}},
        f"{TRAINING}.communication.bucketMiB: with dpShard, cp or tp, replicas exchange gradients block by block",
    ),
    (
        {"spec__checkpoint": {"ram": {"limit": "0", "every": 5}}},
        "spec.checkpoint.ram.every: nothing is kept in memory with limit 0",
    ),
    *(
        (
            {"spec__recovery": {"elastic": {name: 10}}},
            f"spec.recovery.elastic.{name}: the job cannot change its size, because neither workers.min nor workers",
        )
        for name in ("waitSeconds", "cooldownSeconds")
    ),
    *(
        (
            {"spec__workers__template": {"spec": {"containers": [{"name": "trainer", word: ["python", "train.py"]}]}}},
            f"spec.workers.template.spec.containers[0].{word}: framework Trainmaster runs its own trainer, and",
        )
        for word in ("command", "args")
    ),
    (
        {"spec__recovery": {"hang": {"mode": "Off", "factor": 4}}},
        "spec.recovery.hang.factor: nothing is watched with mode Off",
    ),
]
"""Each with the beginning of the sentence that says so."""

SAVED_NOWHERE = "the job has no storage, so nothing is saved; set checkpoint.volume or checkpoint.directory"

ON_CLUSTERS: list[tuple[dict[str, Any], str]] = [
    *(
        ({"spec__checkpoint": {name: value}}, f"spec.checkpoint.{name}: {SAVED_NOWHERE}")
        for name, value in (("every", 7), ("keep", 1), ("timeoutSeconds", 60), ("ram", {"every": 1}), ("ram", {}))
    ),
    (
        {"spec__checkpoint": {"keepBest": True}, "spec__training__evaluation": {"data": {"path": "/data"}, "every": 5}},
        f"spec.checkpoint.keepBest: {SAVED_NOWHERE}",
    ),
]
"""The same of jobs without storage, which save to a folder of their own on one machine and nowhere on a cluster."""

OF_DERIVED_DEGREES: list[tuple[dict[str, Any], str]] = [
    (parallelism(dpReplicate=4, sharding={"stage": 2}), f"{TRAINING}.parallelism.sharding: it configures shards"),
    (
        {**parallelism(dpShard=4), "spec__training__communication": {"compression": {"method": "bf16"}}},
        f"{TRAINING}.communication.compression: it compresses gradients that replicas sum, and dpReplicate is 1",
    ),
]
"""The same, where a degree follows from the number of ranks, which an API server doesn't reckon out."""

TAKEN: list[dict[str, Any]] = [
    optimizer(name="sgd", momentum=0.5),
    optimizer(name="muon", momentum=0.5, betas=[0.8, 0.9], eps=1e-6),
    optimizer(schedule="Cosine", minLrRatio=0.5),
    {"spec__training__divergence": {"window": 50, "spikeFactor": 3}},
    parallelism(pp=2, pipeline={"balance": "Parameters"}),
    parallelism(cp=4, sharding={"stage": 2}),
    parallelism(dpReplicate=2, sharding={"stage": 2}),
    parallelism(pp=2, dpShard=2, sharding={"offload": True}),
    {**PLAIN, "spec__training__communication": {"bucketMiB": 50}},
    {**parallelism(), "spec__training__communication": {"compression": {"method": "bf16"}}},
    {
        "spec__workers": {"replicas": 4, "min": 2},
        "spec__recovery": {"elastic": {"waitSeconds": 10, "cooldownSeconds": 0}},
        **parallelism(),
    },
    {"spec__checkpoint": {"directory": "/mnt/run", "timeoutSeconds": 60, "ram": {"every": 1}}},
    {"spec__checkpoint": {"volume": {"claim": "checkpoints"}, "every": 7, "keep": 1}},
    {"spec__checkpoint": {"ram": {"limit": "0"}}},
]
