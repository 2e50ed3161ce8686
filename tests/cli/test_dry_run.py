"""What a cluster says to a job and its pods before anything is stored there, over the memory store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import WriteJob
from tests.cli.on_cluster import SPACE, Cluster, refused
from trainmaster_operator.cli.main import main
from trainmaster_operator.cluster.port import JOB, POD, Forbidden, Invalid

STRICT = (
    'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "spec.tolerrations", '
    'unknown field "spec.containers[0].resources.limit"'
)
NO_RIGHT = 'pods is forbidden: User "me" cannot create resource "pods" in API group "" in the namespace "team-a"'
WEBHOOK = 'admission webhook "w.example" does not support dry run'
COMMANDS = [("submit",), ("validate", "--cluster")]


def misspelt(write_job: WriteJob) -> Path:
    spec = {"tolerrations": [], "containers": [{"name": "main", "resources": {"limit": {"cpu": "1"}}}]}
    return write_job(spec__workers__template={"spec": spec})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_real_pod_of_the_job_is_tried_first(
    cluster: Cluster, write_job: WriteJob, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job(spec__workers__template={"spec": {"nodeSelector": {"gpu": "h100"}}})
    assert main([*command, str(file)]) == 0
    job, pod = cluster.tried
    assert (job["kind"], pod["kind"]) == (JOB, POD)
    assert (pod["metadata"]["name"], pod["metadata"]["namespace"]) == ("tiny-worker-0-0", SPACE)
    assert "ownerReferences" not in pod["metadata"]  # the owner isn't stored
    assert pod["spec"]["nodeSelector"] == {"gpu": "h100"}
    assert {"trainmaster-identity"} <= {volume["name"] for volume in pod["spec"]["volumes"]}  # as in a cluster
    assert len(cluster.store.list(JOB).items) == (1 if command == ("submit",) else 0)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_fields_that_the_cluster_does_not_know_are_told_at_their_lines(
    cluster: Cluster, write_job: WriteJob, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    file = misspelt(write_job)
    cluster.refuses_pods = Invalid(STRICT)
    assert main([*command, str(file)]) == 2
    lines = file.read_text().splitlines()
    at = {key: next(n for n, line in enumerate(lines, 1) if key in line) for key in ("tolerrations", "limit:")}
    where = "spec.workers.template.spec"
    assert capsys.readouterr().err.splitlines() == [
        f"trainmaster: {file}:{at['tolerrations']}: {where}.tolerrations: unknown field of a pod; did you mean "
        "tolerations?",
        f"trainmaster: {file}:{at['limit:']}: {where}.containers[0].resources.limit: unknown field of a pod; did you "
        "mean limits?",
    ]
    assert cluster.store.list(JOB).items == []


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "error",
    [
        Forbidden('pods "tiny-worker-0-0" is forbidden: violates PodSecurity "restricted:latest": host namespaces'),
        Forbidden('pods "tiny-worker-0-0" is forbidden: failed quota: compute: must specify limits.cpu'),
        Invalid('Pod "tiny-worker-0-0" is invalid: spec.containers[0].resources.limits[gpu]: Invalid value: "gpu"'),
    ],
)
def test_a_pod_that_can_never_be_created_refuses_the_job(
    cluster: Cluster,
    write_job: WriteJob,
    command: tuple[str, ...],
    error: Exception,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = write_job()
    cluster.refuses_pods = error
    assert refused(capsys, *command, str(file)) == f"{file}: the cluster refuses its pods: {error}"
    assert cluster.store.list(JOB).items == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Forbidden("exceeded quota: compute, requested: cpu=4"), "its pods cannot start now"),
        (Forbidden(NO_RIGHT), "the cluster did not check its pods"),
        (Invalid(WEBHOOK), "the cluster did not check its pods"),
    ],
)
def test_what_says_nothing_about_the_job_is_told_and_the_job_is_submitted(
    cluster: Cluster, write_job: WriteJob, error: Exception, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job()
    cluster.refuses_pods = error
    assert main(["submit", str(file)]) == 0
    assert capsys.readouterr().err == f"trainmaster: {file}: {words}: {error}\n"
    assert cluster.store.find(JOB, SPACE, "tiny")


def test_what_a_webhook_says_about_the_pods_is_harmless_for_a_terminal(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job()
    cluster.refuses_pods = Forbidden("exceeded quota: \x1b]0;title\x07compute\x1b[2J")
    assert main(["submit", str(file)]) == 0
    assert capsys.readouterr().err == f"trainmaster: {file}: its pods cannot start now: exceeded quota: compute\n"


def test_names_are_compared_here_when_no_pod_may_be_tried(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = misspelt(write_job)
    cluster.refuses_pods = Forbidden(NO_RIGHT)
    assert main(["submit", str(file)]) == 2
    assert "tolerrations: unknown field of a pod; did you mean tolerations?" in capsys.readouterr().err
    assert cluster.store.list(JOB).items == []


def test_a_cluster_that_is_newer_than_our_names_decides(cluster: Cluster, write_job: WriteJob) -> None:
    file = misspelt(write_job)  # the store takes any name
    assert main(["submit", str(file)]) == 0
    assert cluster.store.find(JOB, SPACE, "tiny")["spec"]["workers"]["template"]["spec"]["tolerrations"] == []


@pytest.mark.parametrize("options", [(), ("--cluster",)])
def test_on_a_laptop_without_a_cluster_names_are_compared_with_ours(
    write_job: WriteJob,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["validate", str(misspelt(write_job)), *options]) == 2
    assert "tolerrations: unknown field of a pod; did you mean tolerations?" in capsys.readouterr().err
    assert main(["validate", str(write_job()), *options]) == 0
    assert ("no cluster has checked it, because there is no kubeconfig" in capsys.readouterr().out) == bool(options)


@pytest.mark.parametrize(
    ("checkpoint", "warns"),
    [({"directory": "/checkpoints/a"}, True), ({"directory": "/checkpoints/a", "volume": {"claim": "c"}}, False)],
)
def test_validate_for_a_cluster_warns_of_checkpoints_that_would_be_lost_with_their_pods(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str], checkpoint: Any, warns: bool
) -> None:
    assert main(["validate", str(write_job(spec__checkpoint=checkpoint)), "--cluster"]) == 0
    warned = "trainmaster: warning: spec.checkpoint.directory /checkpoints/a lies in each pod's own file system"
    assert (warned in capsys.readouterr().err) == warns


@pytest.mark.parametrize("command", [*COMMANDS, ("validate",)])
def test_a_job_that_leaves_its_gpus_unused_is_accepted_with_a_warning(
    cluster: Cluster,
    write_job: WriteJob,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
) -> None:
    containers = [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 8}}}]
    file = write_job(
        spec__workers__template={"spec": {"containers": containers}},
        spec__training__data={"source": "text", "path": str(tmp_path)},
    )
    assert main([*command, str(file)]) == 0
    assert "trainmaster: warning: spec.workers.ranksPerPod is 1, but each pod asks for 8" in capsys.readouterr().err
    assert len(cluster.store.list(JOB).items) == (1 if command == ("submit",) else 0)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_job_that_must_have_gpus_and_asks_for_none_reaches_no_cluster(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    assert main([*command, str(write_job(spec__training__device="CUDA"))]) == 2
    assert "spec.training.device: CUDA needs a GPU for each rank" in capsys.readouterr().err
    assert cluster.tried == []


def test_a_cluster_that_is_named_must_be_there(write_job: WriteJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "validate", str(write_job()), "--kubeconfig", "gone") == "--kubeconfig gone: does not exist"


def test_a_dry_run_names_no_user_since_the_cluster_may_choose_it(cluster: Cluster, write_job: WriteJob) -> None:
    assert main(["submit", str(write_job())]) == 0
    _, pod = cluster.tried
    context = pod["spec"]["containers"][0]["securityContext"]
    assert (context["runAsNonRoot"], context.get("runAsUser"), pod["spec"].get("securityContext")) == (True, None, None)


@pytest.mark.parametrize("enough", [True, False], ids=["filled up it is taken", "it is refused all the same"])
def test_a_job_that_needs_the_operator_to_fill_up_its_image_is_submitted_with_a_word_about_that(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str], enough: bool
) -> None:
    tried = cluster.try_create

    async def judged(kind: str, obj: Any) -> None:
        if kind == POD:
            context = obj["spec"]["containers"][0].get("securityContext") or {}
            if not enough or "runAsNonRoot" not in context:
                raise Forbidden('pods "tiny-worker-0-0" is forbidden: violates PodSecurity "restricted:latest"')
        await tried(kind, obj)

    cluster.try_create = judged  # type: ignore[method-assign]
    container = {"name": "main", "image": "example/any:1", "command": ["true"]}
    template = {"spec": {"containers": [container]}}
    file = write_job(spec__workers__template=template, spec__framework="PyTorch", spec__training=None)
    assert main(["submit", str(file)]) == (0 if enough else 2)
    err = capsys.readouterr().err
    assert ("jobPods.restrictUserImages" in err) is enough
    assert 'violates PodSecurity "restricted:latest"' in err
