"""Every mistake is told in words, with its place, and all of them at once."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.jobs import PYTORCH, TRAINMASTER, job
from trainmaster.contract.wire import Cause
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.api.recovery_rules import RuledCause
from trainmaster_operator.api.validation.job_validation import validate

EXAMPLES = sorted((Path(__file__).parents[2] / "manifests" / "examples").glob("*.yaml"))
CONTAINER = "spec__workers__template__spec__containers"


def told(document: Any) -> list[str]:
    return [str(problem) for problem in validate(document)]


@pytest.mark.parametrize("document", [TRAINMASTER, PYTORCH], ids=["Trainmaster", "PyTorch"])
def test_a_valid_job_has_no_problems(document: dict[str, Any]) -> None:
    assert told(document) == []


def test_the_size_of_a_job_with_bounds_is_a_wish() -> None:
    workers = {"replicas": 7, "min": 2, "max": 9, "spares": 1}
    assert told(job(spec__workers=workers, spec__training__parallelism={"dpShard": 2})) == []


def test_a_job_as_the_server_returns_it_is_valid() -> None:
    assert told({**job(metadata__uid="u", metadata__managedFields=[]), "status": {"anything": 1}}) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"apiVersion": "v1"}, "apiVersion: trainmaster.dev/v1alpha1 is expected, not 'v1'"),
        ({"kind": "Job"}, "kind: DistributedTrainingJob is expected, not 'Job'"),
        ({"kind": ...}, "kind: DistributedTrainingJob is expected"),
        ({"metadata": {}}, "metadata.name: is missing: the job's name"),
        ({"metadata": 3}, "metadata: a map with a name is expected, not 3"),
        (
            {"metadata__name": "My_Job!"},
            "metadata.name: lower-case letters, digits and '-' are expected, from a letter to a letter or digit, "
            "for example my-job; not 'My_Job!'",
        ),
        (
            {"metadata__name": "a" * 51},
            "metadata.name: at most 50 characters are expected, not 51: hostnames are made from it",
        ),
        ({"metadata__label": {}}, "metadata.label: unknown field; did you mean labels?"),
        ({"spec": ...}, "spec: is missing"),
        ({"spec": []}, "spec: a map is expected, not a list"),
        ({"spec__suspended": 3}, "spec.suspended: unknown field; did you mean suspend?"),
        ({"spec__workers__replica": 3}, "spec.workers.replica: unknown field; did you mean replicas?"),
        (
            {"spec__training__steps": ..., "spec__training__step": 400},
            "spec.training.step: unknown field; did you mean steps?",
        ),
        ({"spec__lr": 0.1}, "spec.lr: unknown field here; spec.training.optimizer.lr is known"),
        (
            {"spec__checkpoint": {"everySteps": 10}},
            "spec.checkpoint.everySteps: unknown field; did you mean every?",
        ),
        (
            {"spec__training__batch": {"global": 8, "colour": 1}},
            "spec.training.batch.colour: unknown field; known here: global, micro",
        ),
        ({"spec__workers__replicas": "4"}, "spec.workers.replicas: a whole number is expected, not '4'"),
        ({"spec__workers__replicas": 0}, "spec.workers.replicas: at least 1 is expected, not 0"),
        ({"spec__training__steps": 1.5}, "spec.training.steps: a whole number is expected, not 1.5"),
        ({"spec__training__steps": True}, "spec.training.steps: a whole number is expected, not true"),
        ({"spec__training__steps": None}, "spec.training.steps: a whole number is expected, not nothing"),
        (
            {"spec__training__data": {}},
            "spec.training.data.path: is missing: The path of the data, as the ranks see it",
        ),
        ({"spec__suspend": "no"}, "spec.suspend: true or false is expected, not 'no'"),
        (
            {"spec__framework": "pytorch"},
            "spec.framework: one of Trainmaster, PyTorch, TensorFlow, JAX, DeepSpeed, HuggingFace, Horovod, "
            "XGBoost is expected, not 'pytorch'; did you mean PyTorch?",
        ),
        (
            {"spec__training__optimizer": {"name": "adam"}},
            "spec.training.optimizer.name: one of adamw, sgd, muon is expected, not 'adam'; did you mean adamw?",
        ),
        ({"spec__training__optimizer": {"lr": 0}}, "spec.training.optimizer.lr: more than 0 is expected, not 0"),
        (
            {"spec__training__optimizer": {"betas": [5, 0.9]}},
            "spec.training.optimizer.betas[0]: less than 1 is expected, not 5",
        ),
        (
            {"spec__training__optimizer": {"betas": [0.9, -3]}},
            "spec.training.optimizer.betas[1]: at least 0 is expected, not -3",
        ),
        (
            {"spec__activeDeadlineSeconds": 10**10},
            "spec.activeDeadlineSeconds: at most 1000000000 is expected, not 10000000000",
        ),
        (
            {"spec__training__optimizer": {"lr": float("nan")}},
            "spec.training.optimizer.lr: a finite number is expected, not nan",
        ),
        (
            {"spec__training__optimizer": {"warmupSteps": 100}},
            "spec.training.optimizer.warmupSteps: less than steps (100) is expected, not 100",
        ),
        (
            {"spec__training__parallelism": {"dpReplicate": 3, "dpShard": 2}},
            "spec.training.parallelism: dpReplicate 3 x dpShard 2 = 6 ranks, but the job has 4 "
            "(workers.replicas 4 x ranksPerPod 1)",
        ),
        (
            {"spec__training__parallelism": {"dpShard": 3}},
            "spec.training.parallelism: dpShard 3 needs a multiple of 3 ranks. Use dpShard 1 or 2, or 3 or 6 ranks. "
            "The job has 4 ranks (workers.replicas 4 x ranksPerPod 1)",
        ),
        (
            {"spec__training__batch": {"global": 10}},
            "spec.training.batch.global: 10 is not divisible by the job's 4 ranks; 8 and 12 are",
        ),
        (
            {"spec__training__batch": {"global": 3}},
            "spec.training.batch.global: 3 is not divisible by the job's 4 ranks; 4 and 8 are",
        ),
        (
            {"spec__training__batch": {"global": 24, "micro": 4}},
            "spec.training.batch.micro: 4 doesn't divide a rank's share of 6 sequences (global 24 / 4 ranks); "
            "1, 2, 3, 6 would",
        ),
        (
            {"spec__training__batch": {"global": 24, "micro": 5, "scaling": {"ranks": 2, "learningRate": "Linear"}}},
            "spec.training.batch.micro: 5 doesn't divide a rank's share of 12 sequences (global 48 / 4 ranks); "
            "1, 2, 3, 4, 6, 12 would",
        ),
        (
            {"spec__training__batch": {"global": 25, "scaling": {"ranks": 4, "learningRate": "Linear"}}},
            "spec.training.batch: global 25 is not divisible by scaling.ranks 4; 24 and 28 are",
        ),
        (
            {"spec__training__batch": {"global": 24, "scaling": {"ranks": 4, "learningRate": "Lineal"}}},
            "spec.training.batch.scaling.learningRate: one of Constant, Linear, SquareRoot is expected, not 'Lineal'",
        ),
        (
            {"spec__workers": {"replicas": 4, "min": 5}},
            "spec.workers: replicas must be at least min 5, not 4",
        ),
        (
            {"spec__workers": {"replicas": 4, "min": 2, "max": 3}},
            "spec.workers: replicas must be from min 2 to max 3, not 4",
        ),
        (
            {
                "spec__workers": {"replicas": 99_999, "spares": 2},
                "spec__training__parallelism": {},
                "spec__training__batch": {"global": 99_999},
            },
            "spec.workers: replicas 99999 and spares 2 are more than 100000 pods",
        ),
        (
            {"spec__workers": {"replicas": 7, "min": 5}, "spec__training__parallelism": {}},
            "spec.workers: no number of pods from 5 to 7 is possible: batch.global 8 is not divisible by the 7 "
            "data-parallel ranks; 7 and 14 are",
        ),
        ({"spec__training": ...}, "spec: framework Trainmaster needs spec.training"),
        ({"spec__checkpoint": {"directory": ""}}, "spec.checkpoint.directory: is empty"),
        (
            {"spec__checkpoint": {"volume": {}}},
            "spec.checkpoint.volume: exactly one of claim and hostPath is expected, not neither",
        ),
        (
            {"spec__checkpoint": {"volume": {"claim": "a", "hostPath": "/b"}}},
            "spec.checkpoint.volume: exactly one of claim and hostPath is expected, not both",
        ),
        (
            {"spec__checkpoint": {"volume": {"claim": "My Claim"}}},
            "spec.checkpoint.volume.claim: the name of a PersistentVolumeClaim (lower-case letters, digits, '-' and "
            "'.') is expected, not 'My Claim'",
        ),
        (
            {"spec__checkpoint": {"volume": {"hostPath": "mnt/x"}}},
            "spec.checkpoint.volume.hostPath: an absolute path such as /mnt/checkpoints is expected, not 'mnt/x'",
        ),
        (
            {"spec__checkpoint": {"volume": {"claim": "a"}, "directory": "here"}},
            "spec.checkpoint: directory must be an absolute path without ':' to mount a volume, not 'here'",
        ),
        ({"spec__checkpoint": {"volume": {"pvc": "a"}}}, "spec.checkpoint.volume"),
        (
            {"spec__checkpoint": {"ram": {"limit": "2 GB"}}},
            "spec.checkpoint.ram.limit: an amount of memory such as 8Gi, or 0 for none, is expected, not '2 GB'",
        ),
        (
            {"spec__checkpoint": {"ram": {"every": 1, "peers": 2}}},
            "spec.checkpoint.ram.peers: at most 1 is expected, not 2",
        ),
        (
            {"spec__workers__sharedMemory": "8 GB"},
            "spec.workers.sharedMemory: an amount of memory such as 8Gi or 512Mi is expected, not '8 GB'",
        ),
        ({"spec__workers__sharedMemory": 8}, "spec.workers.sharedMemory: text is expected, not 8"),
        (
            {"spec__recovery": {"hang": {"mode": False}}},
            "spec.recovery.hang.mode: one of Off, Observe, Notify, Enforce is expected; YAML reads Off without quotes "
            'as false, so write "Off"',
        ),
        (
            {"spec__pendingDeadlineSeconds": 0.5},
            "spec.pendingDeadlineSeconds: a whole number of seconds is expected, not 0.5",
        ),
        ({"spec__pendingDeadlineSeconds": 0}, "spec.pendingDeadlineSeconds: at least 1 is expected, not 0"),
        (
            {
                "spec__training__device": "CUDA",
                "spec__training__parallelism": {},
                "spec__training__batch": {"global": 32},
                "spec__workers__ranksPerPod": 8,
                CONTAINER: [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 4}}}],
            },
            "spec.workers.ranksPerPod: 8 ranks need 8 GPUs, because training.device is CUDA, but the first container "
            "of the template asks for 4; make the two numbers equal",
        ),
        (
            {"spec__scheduling": {"releaseSecond": 3}},
            "spec.scheduling.releaseSecond: unknown field; did you mean releaseSeconds?",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_mistake_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    problems = told(job(**changes))
    assert len(problems) == 1, problems
    assert problems[0].startswith(sentence)


RULES = "spec.recovery.rules[0]"


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (
            {"action": "Fial"},
            f"{RULES}.action: one of RestartInPlace, ReplacePod, RestartAll, RestartWithoutCounting, "
            "Shrink, SkipData, Hold, Fail is expected, not 'Fial'; did you mean Fail?",
        ),
        ({"causes": ["Crash"]}, f"{RULES}.action: is missing: What happens after a failure that the rule matches"),
        ({"action": "Fail", "exitCode": [3]}, f"{RULES}.exitCode: unknown field; did you mean exitCodes?"),
        ({"action": "Fail", "exitCodes": [256]}, f"{RULES}.exitCodes[0]: at most 255 is expected, not 256"),
        (
            {"action": "Fail", "message": "(a"},
            f"{RULES}.message: the '(' at character 1 is never closed; write \\( for the character itself",
        ),
        ({"action": "Fail", "message": "a" * 257}, f"{RULES}.message: at most 256 characters are expected, not 257"),
        (
            {"action": "SkipData", "causes": ["Diverged", "Crash"]},
            f"{RULES}: SkipData needs causes: [Diverged], because only for this cause the samples to skip are known",
        ),
        (
            {"action": "RestartInPlace", "causes": ["Crash", "HardwareFault"]},
            f"{RULES}: RestartInPlace cannot recover from HardwareFault, which needs another pod; use ReplacePod",
        ),
        (
            {"action": "Shrink"},
            f"{RULES}: Shrink needs workers.min, the smallest number of pods with which the job continues",
        ),
    ],
)
def test_a_bad_rule_is_one_sentence(rule: dict[str, Any], sentence: str) -> None:
    assert told(job(spec__recovery={"rules": [rule]})) == [sentence]


def test_a_script_has_no_samples_to_skip() -> None:
    rule = {"action": "SkipData", "causes": ["Diverged"]}
    assert told(job(spec__recovery={"rules": [rule]})) == []
    (sentence,) = told(job(PYTORCH, spec__recovery={"rules": [rule]}))
    assert "SkipData needs framework Trainmaster" in sentence


def test_a_map_where_a_list_of_maps_belongs_is_one_problem() -> None:
    for rules in ({}, {"action": "Hold"}):
        (sentence,) = told(job(spec__recovery={"rules": rules}))
        assert sentence.startswith("spec.recovery.rules: a list is expected")


def test_rules_may_name_every_cause_but_those_of_pods_that_do_not_start() -> None:
    left_out = {Cause.IMAGE_ERROR, Cause.UNSCHEDULABLE}
    assert set(typing.get_args(RuledCause)) == {cause.value for cause in Cause} - {cause.value for cause in left_out}
    rule = {"action": "Hold", "causes": [*typing.get_args(RuledCause)]}
    assert told(job(spec__recovery={"rules": [rule]})) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {CONTAINER: [{"command": "python train.py"}]},
            'spec.workers.template.spec.containers[0].command: a list is expected, for example ["python", "train.py"]; '
            "not 'python train.py'",
        ),
        (
            {CONTAINER: [{"command": ["python", "train.py", 3]}]},
            "spec.workers.template.spec.containers[0].command[2]: text is expected, not 3: put it in quotes",
        ),
        (
            {CONTAINER: [{"name": "worker"}]},
            "spec: framework PyTorch needs workers.template.spec.containers[0].command, for example [python, train.py]",
        ),
        (
            {CONTAINER: [{"command": ["x"], "env": [{"name": "A", "value": 1}]}]},
            "spec.workers.template.spec.containers[0].env[0].value: text is expected, not 1: put it in quotes",
        ),
        (
            {"spec__workers__template__spec__restartPolicy": "Always"},
            "spec.workers.template.spec.restartPolicy: is Never or left out, not 'Always'",
        ),
        (
            {"spec__workers__template__spec__hostname": "me"},
            "spec.workers.template.spec.hostname: is set by the operator: leave it out",
        ),
        (
            {"spec__workers__template__spec__volumes": [{"name": "trainmaster-shm", "emptyDir": {}}]},
            "spec.workers.template.spec.volumes[0].name: 'trainmaster-shm': names that begin with "
            "trainmaster- are reserved for the operator",
        ),
        (
            {"spec__workers__template__spec__initContainers": {"name": "x"}},
            "spec.workers.template.spec.initContainers: a list is expected, not a map",
        ),
        (
            {
                "spec__workers__template__spec__volumes": [{"name": "v", "emptyDir": {}}],
                CONTAINER: [{"command": ["x"], "volumeMounts": [{"name": "v", "mountPath": "/opt/trainmaster/"}]}],
            },
            "spec.workers.template.spec.containers[0].volumeMounts[0].mountPath: /opt/trainmaster/ is where the "
            "operator mounts the agent",
        ),
        (
            {
                "spec__workers__template__spec__volumes": [{"name": "data", "emptyDir": {}}],
                CONTAINER: [{"command": ["x"], "volumeMounts": [{"name": "dat", "mountPath": "/data"}]}],
            },
            "spec.workers.template.spec.containers[0].volumeMounts[0].name: the template has no volume 'dat'; did you "
            "mean data?",
        ),
        (
            {CONTAINER: [{"command": ["x"]}, {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}]},
            "spec.workers.template.spec.containers[1].volumeMounts[0].name: the template has no volume 'v'; add it to "
            "volumes, or remove the mount",
        ),
        (
            {
                "spec__workers__template__spec__volumes": [{"name": "v", "emptyDir": {}}],
                CONTAINER: [{"command": ["x"], "volumeMounts": [{"name": "v", "mountPath": "/checkpoints"}]}],
                "spec__checkpoint": {"volume": {"claim": "c"}},
            },
            "spec.workers.template.spec.containers[0].volumeMounts[0].mountPath: /checkpoints is where the "
            "operator mounts checkpoints",
        ),
        ({"spec__workers__template": {"spec": 5}}, "spec.workers.template.spec: a map is expected, not 5"),
        (
            {"spec__workers__template__spec__imagePullSecrets": ["my-registry"]},
            "spec.workers.template.spec.imagePullSecrets[0]: a map with a name, such as {name: my-registry}, is "
            "expected, not 'my-registry'",
        ),
        (
            {"spec__workers__template__spec__imagePullSecrets": "my-registry"},
            "spec.workers.template.spec.imagePullSecrets: a list such as [{name: my-registry}] is expected, not "
            "'my-registry'",
        ),
        (
            {
                CONTAINER: [
                    {
                        "command": ["x"],
                        "resources": {
                            "requests": {"cpu": 1, "memory": "128Gi"},
                            "limits": {"cpu": "1", "memory": "64Gi"},
                        },
                    }
                ]
            },
            "spec.workers.template.spec.containers[0].resources.limits.memory: 64Gi is less than the request, 128Gi; "
            "raise the limit, or lower the request",
        ),
        (
            {CONTAINER: [{"command": ["x"], "resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}}]},
            "spec.workers.template.spec.containers[0].resources.limits.cpu: 1500m is less than the request, 2; raise "
            "the limit, or lower the request",
        ),
        (
            {"spec__training": TRAINMASTER["spec"]["training"], "spec__workers__replicas": 4},
            "spec: spec.training belongs to framework Trainmaster, not to PyTorch",
        ),
        (
            {"spec__framework": "Tensorflow"},
            "spec.framework: one of Trainmaster, PyTorch, TensorFlow, JAX, DeepSpeed, "
            "HuggingFace, Horovod, XGBoost is expected, not 'Tensorflow'; did you mean TensorFlow?",
        ),
        (
            {
                "spec__framework": "TensorFlow",
                "spec__workers__template": {
                    "spec": {"containers": [{"name": "w", "command": ["a"], "env": [{"name": "TF_CONFIG"}]}]}
                },
            },
            "spec.workers.template.spec.containers[0].env: TF_CONFIG must not be set for framework TensorFlow: "
            "Trainmaster sets it for each rank, with addresses that change at every restart; leave it out",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_mistake_of_a_script_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    assert told(job(PYTORCH, **changes)) == [sentence]


@pytest.mark.parametrize(
    ("device", "limits"),
    [
        ("CUDA", {"nvidia.com/gpu": 8}),
        ("Auto", {"nvidia.com/gpu": 4}),  # its ranks compute on the CPU
        ("CUDA", {"example.com/gpu": 4}),  # a resource of which nothing is known
        ("CUDA", {}),
    ],
)
def test_ranks_that_may_have_their_devices_are_not_refused(device: str, limits: dict[str, int]) -> None:
    changes = {
        "spec__training__device": device,
        "spec__training__parallelism": {},
        "spec__training__batch": {"global": 32},
        "spec__workers__ranksPerPod": 8,
        CONTAINER: [{"name": "trainer", "resources": {"limits": limits}}],
    }
    assert told(job(**changes)) == []


def test_all_problems_are_told_at_once_in_the_order_of_their_paths() -> None:
    problems = told(
        job(
            metadata__name="X",
            spec__workers={"replicas": 4, "ranks": 1},
            spec__training__batch={"global": 9},
            spec__training__parallelism={"dpShard": 3},
            spec__training__seed=-1,
        )
    )
    assert [problem.split(":")[0] for problem in problems] == [
        "metadata.name",
        "spec.training.batch.global",
        "spec.training.parallelism",
        "spec.training.seed",
        "spec.workers.ranks",
    ]


def test_rules_across_fields_are_told_beside_fields_that_are_wrong() -> None:
    problems = told(
        job(
            spec__colour="red",
            spec__workers={"replicas": 3},
            spec__training__seed=-1,
            spec__training__optimizer={"name": "muon", "warmupSteps": 100, "lr": 0},
            spec__training__parallelism={"dpShard": 3, "tp": 2, "sharding": {"offload": True}},
            spec__checkpoint={"keepBest": True},
            spec__training__compile=True,
            spec__recovery={"rules": [{"action": "Shrink"}], "zygot": False},
        )
    )
    assert [problem.split(":")[0] for problem in problems] == [
        "spec.checkpoint.keepBest",
        "spec.colour",
        "spec.recovery.rules[0]",
        "spec.recovery.zygot",
        "spec.training",  # muon with offload
        "spec.training",  # compile with tp
        "spec.training.optimizer.lr",
        "spec.training.optimizer.warmupSteps",
        "spec.training.parallelism",
        "spec.training.seed",
    ]


def test_a_rule_that_needs_a_field_that_is_wrong_says_nothing() -> None:
    assert told(job(spec__workers={"replicas": "four"})) == [
        "spec.workers.replicas: a whole number is expected, not 'four'"
    ]
    assert told(job(spec__framework="Torch", spec__training=...))[0].startswith("spec.framework: one of")


def test_a_pipeline_with_too_few_micro_batches_is_told_once() -> None:
    parallelism = {"pp": 2, "dpReplicate": 2, "pipeline": {"schedule": "ZBV"}}
    assert told(job(spec__training__batch={"global": 4}, spec__training__parallelism=parallelism)) == [
        "spec.training.parallelism.pipeline: ZBV over pp 2 needs at least 4 micro-batches, and batch.global 4 over 2 "
        "data-parallel ranks makes 2"
    ]


def test_the_ranks_that_a_person_asked_for_are_held_against_those_that_there_are() -> None:
    changes = {"spec__workers": {"replicas": 2}, "spec__training__parallelism": {"dpShard": 3, "tp": 2}}
    assert told(job(**changes)) == [
        "spec.training.parallelism: dpShard 3 x tp 2 = 6 ranks, but the job has 2 (workers.replicas 2 x ranksPerPod 1)"
    ]


@pytest.mark.parametrize("document", [None, [], "text", 3, {}])
def test_what_is_no_job_at_all_is_told_too(document: Any) -> None:
    assert told(document)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PLACES = [
    ("metadata",),
    ("metadata", "name"),
    ("spec",),
    ("spec", "framework"),
    ("spec", "workers"),
    ("spec", "workers", "template"),
    ("spec", "workers", "template", "spec"),
    ("spec", "workers", "template", "spec", "containers"),
    ("spec", "training"),
    ("spec", "training", "data"),
    ("spec", "training", "batch"),
    ("spec", "training", "batch", "micro"),
    ("spec", "training", "parallelism"),
    ("spec", "training", "steps"),
    ("spec", "recovery"),
]


@settings(max_examples=300, deadline=None)
@given(base=st.sampled_from([TRAINMASTER, PYTORCH]), place=st.sampled_from(PLACES), value=JSON)
def test_anything_anywhere_is_either_valid_for_the_models_or_told(
    base: dict[str, Any], place: tuple[str, ...], value: Any
) -> None:
    document = job(base, **{"__".join(place): value})
    if not told(document):
        DistributedTrainingJob.model_validate(document)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_every_example_is_valid(file: Path) -> None:
    assert told(yaml.safe_load(file.read_text())) == []
