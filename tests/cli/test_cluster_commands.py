"""Jobs on a cluster, over the memory store: which cluster, submit, delete, status; every wrong turn is a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import WriteJob
from tests.cli.on_cluster import SPACE, Cluster, put, put_pod, refused
from tests.cli.runs import CLOSED, CRASH, status
from trainmaster_operator.cli import cluster_connection as connection
from trainmaster_operator.cli import find_job
from trainmaster_operator.cli.cluster_jobs import restart_job
from trainmaster_operator.cli.kubeconfig import POD_NAMESPACE
from trainmaster_operator.cli.main import main
from trainmaster_operator.cluster.port import JOB, Forbidden, Invalid, NotFound, Object, Unavailable
from trainmaster_operator.planning.facts.job_state import Condition, JobPhase, JobState

# -- which cluster


def test_without_a_kubeconfig_nothing_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not POD_NAMESPACE.exists()
    assert refused(capsys, "delete", "tiny") == (
        "no kubeconfig: ~/.kube/config does not exist; use --kubeconfig, or set the variable KUBECONFIG"
    )
    assert refused(capsys, "delete", "tiny", "--kubeconfig", "nowhere") == "--kubeconfig nowhere: does not exist"
    monkeypatch.setenv("KUBECONFIG", "gone:lost")
    assert refused(capsys, "delete", "tiny") == "KUBECONFIG gone:lost: does not exist"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "cannot be read as a kubeconfig: "),
        ("[1, 2]", "is not a kubeconfig"),
        ("current-context: 5", "is not a kubeconfig: its current-context is no text"),
        (
            "contexts: [{name: a, context: [1]}]\ncurrent-context: a",
            "is not a kubeconfig: its context a is no map",
        ),
        (
            "contexts: [{name: a, context: {namespace: 5}}]\ncurrent-context: a",
            "is not a kubeconfig: the namespace of its context a is no text",
        ),
        ("contexts: []", "has no current context; choose one with --context: none"),
        ("{contexts: [{name: a}]}", "has no current context; choose one with --context: a"),
        ("{contexts: [{name: a}], current-context: b}", "has no context b; its contexts are: a"),
    ],
)
def test_a_kubeconfig_that_leads_nowhere_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, sentence: str
) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    assert refused(capsys, "status", "tiny", "--kubeconfig", str(file)).startswith(f"{file}: {sentence}")


def test_a_context_that_is_not_there_is_told_with_the_nearest(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, "logs", "tiny", "--context", "stagin")
    assert line == f"{kubeconfig}: has no context stagin; did you mean staging?"


def test_of_several_kubeconfigs_the_first_that_says_something_counts(
    tmp_path: Path, kubeconfig: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, write_job: WriteJob
) -> None:
    other = tmp_path / "other"
    mine = {"name": "prod", "context": {"namespace": "other"}}
    other.write_text(yaml.safe_dump({"contexts": [mine, {"name": "third"}], "current-context": "third"}))
    monkeypatch.setenv("KUBECONFIG", f"{kubeconfig}:{tmp_path / 'missing'}:{other}")
    put(cluster.store, write_job())
    assert main(["status", "tiny"]) == 0  # in the first file's namespace of prod
    assert cluster.asked["context"] == "prod"
    assert cluster.asked["kubeconfig"] == f"{kubeconfig}:{other}"


def test_a_kubeconfig_without_a_server_is_told(kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "status", "tiny").startswith(f"{kubeconfig}: not a usable kubeconfig: ")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            Unavailable("GET /apis/x: Cannot connect"),
            "https://k8s.example: the cluster does not answer as expected: GET /apis/x: Cannot connect",
        ),
        (Unavailable("Unauthorized"), "https://k8s.example: does not accept the credentials of the kubeconfig's user"),
        # It may quote others, such as a webhook, and a terminal must obey none of it.
        (
            Forbidden('User "\x1b]0;title\x07me" cannot\nget jobs\x07'),
            'namespace team-a: not allowed: User "me" cannot get jobs',
        ),
        (
            NotFound("404 page not found"),
            "https://k8s.example: does not know the kind DistributedTrainingJob: Trainmaster is not installed there",
        ),
    ],
)
@pytest.mark.parametrize("command", ["status", "status --watch", "logs", "report", "delete", "restart", "submit"])
def test_what_the_cluster_refuses_is_one_sentence(
    cluster: Cluster,
    write_job: WriteJob,
    capsys: pytest.CaptureFixture[str],
    command: str,
    error: Exception,
    sentence: str,
) -> None:
    cluster.refuses = error
    assert refused(capsys, *command.split(), str(write_job()) if command == "submit" else "tiny") == sentence


@pytest.mark.parametrize("command", ["status", "status --watch", "logs", "report", "delete", "restart"])
def test_a_job_that_is_not_there_is_told_with_the_nearest(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    words = command.split()
    assert refused(capsys, *words, "tiny") == "team-a/tiny: there is no such job; namespace team-a holds none"
    put(cluster.store, write_job())
    assert refused(capsys, *words, "tinny") == "team-a/tinny: there is no such job; did you mean tiny?"
    assert refused(capsys, *words, "zzz") == "team-a/zzz: there is no such job; the namespace has tiny"
    assert refused(capsys, *words, "tiny", "-n", "b") == "b/tiny: there is no such job; namespace b holds none"


# -- submit, delete


def test_a_job_is_submitted_once_into_the_namespace_of_the_context(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job()
    assert main(["submit", str(file)]) == 0
    assert "`trainmaster status tiny -n team-a --watch` shows its progress" in capsys.readouterr().out
    assert cluster.store.find(JOB, SPACE, "tiny")["spec"]["training"]["steps"] == 100
    assert refused(capsys, "submit", str(file)).startswith(
        "team-a/tiny: a job with this name exists already; delete it first"
    )
    assert main(["submit", str(file), "-n", "b"]) == 0
    assert cluster.store.find(JOB, "b", "tiny")


def test_two_namespaces_for_one_job_are_refused(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job(metadata__namespace="mine")
    assert "metadata.namespace is mine, but the command line says b" in refused(capsys, "submit", str(file), "-n", "b")
    assert main(["submit", str(file)]) == 0
    assert cluster.store.find(JOB, "mine", "tiny")


def test_a_job_with_a_mistake_never_reaches_the_cluster(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job(spec__training__batch={"global": 0})
    assert "spec.training.batch.global: at least 1 is expected" in refused(capsys, "submit", str(file))
    assert cluster.store.list(JOB).items == []


def test_what_only_the_cluster_knows_better_is_told_in_its_words(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job()
    cluster.refuses = Invalid("spec.workers: Invalid value:\n too many")
    assert (
        refused(capsys, "submit", str(file))
        == f"{file}: the cluster refuses the job: spec.workers: Invalid value: too many"
    )
    cluster.refuses = NotFound('namespaces "team-a" not found')
    assert refused(capsys, "submit", str(file)) == "namespace team-a: doesn't exist"


def test_a_deleted_job_is_gone(cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]) -> None:
    put(cluster.store, write_job())
    assert main(["delete", "tiny"]) == 0
    assert capsys.readouterr().out == "job tiny is deleted; its pods are being deleted\n"
    assert cluster.store.list(JOB).items == []


# -- restart


def test_a_restart_raises_the_number_that_asks_for_one(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    put(cluster.store, write_job(), now=status(restartObeyed=4))
    assert main(["restart", "tiny"]) == 0
    assert "job tiny saves a checkpoint, and then restarts with its current spec" in capsys.readouterr().out
    assert cluster.store.find(JOB, SPACE, "tiny")["spec"]["restart"] == 5
    assert main(["restart", "tiny"]) == 0
    assert cluster.store.find(JOB, SPACE, "tiny")["spec"]["restart"] == 6


def test_a_job_that_is_written_to_meanwhile_is_restarted_all_the_same(
    cluster: Cluster, write_job: WriteJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster.store, write_job(), now=status())

    async def find(target: connection.Target, name: str) -> Object:
        job = await find_job.find(target, name)
        cluster.store.patch(JOB, SPACE, "tiny", {"metadata": {"annotations": {"written": "meanwhile"}}})
        return job

    monkeypatch.setattr(restart_job, "find", find)
    assert main(["restart", "tiny"]) == 0
    assert cluster.store.find(JOB, SPACE, "tiny")["spec"]["restart"] == 1


def test_a_job_that_does_not_run_is_not_restarted(
    tmp_path: Path, cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    put(cluster.store, write_job(), "over", now=status(JobPhase.SUCCEEDED))
    line = refused(capsys, "restart", "over")
    assert line == "team-a/over: has succeeded already, so it cannot be restarted; submit it again"
    put(cluster.store, write_job(), "waits", now=status(JobPhase.SUSPENDED))
    cluster.store.patch(JOB, SPACE, "waits", {"spec": {"suspend": True}})
    assert refused(capsys, "restart", "waits").startswith(
        "team-a/waits: is suspended, so it cannot be restarted; set spec.suspend to false to resume it"
    )
    assert refused(capsys, "restart", str(tmp_path)).startswith(
        f"{tmp_path}: the name of a job on a cluster is expected"
    )
    assert "restart" not in cluster.store.find(JOB, SPACE, "waits")["spec"]


# -- status


def test_the_status_of_a_job_has_its_namespace_and_its_progress(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    put(cluster.store, write_job(), now=status(step=60))
    assert main(["status", "tiny"]) == 0
    assert "tiny in namespace team-a: Running  step 60/100  loss 2.5000" in capsys.readouterr().out


def test_a_job_that_waits_for_its_pods_has_no_step_yet(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = Condition(type="Scheduled", status="False", reason="Unschedulable", message="0/3 nodes have 8 GPUs")
    put(cluster.store, write_job(), now=JobState(phase=JobPhase.PENDING, conditions=[waits]))
    assert main(["status", "tiny"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "tiny in namespace team-a: Pending  no step yet",
        "Not scheduled: Unschedulable: 0/3 nodes have 8 GPUs",
    ]


@pytest.mark.parametrize("may_read", [True, False])
def test_the_status_tells_that_a_drain_waits_if_the_person_may_read_budgets(
    may_read: bool, cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    job = put(cluster.store, write_job(), now=status(step=60))
    put_pod(cluster.store, job, 0)
    spec = {"selector": {"matchLabels": {"trainmaster.dev/job": "tiny"}}}
    budgets = [{"metadata": {"name": "careful"}, "spec": spec, "status": {"disruptionsAllowed": 0}}]
    cluster.budgets = budgets if may_read else Forbidden("poddisruptionbudgets is forbidden")
    assert main(["status", "tiny"]) == 0
    assert ("PodDisruptionBudget careful allows no eviction now" in capsys.readouterr().out) is may_read


def test_the_status_tells_what_is_wrong_and_why(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    conditions = [
        Condition(type="Scheduled", status="False", reason="Unschedulable", message="0/3 nodes have 8 [gpu]s"),
        Condition(type="Running", status="False", reason="Waits", message="not told"),
        Condition(type="ReconcileError", status="True", reason="NameTaken", message="pod x exists"),
    ]
    now = status(JobPhase.RECOVERING, conditions=conditions, lastFailure=CRASH, recoveries=[CLOSED])
    job = put(cluster.store, write_job(), now=now)
    put_pod(cluster.store, job, 0)
    put_pod(cluster.store, job, 1, waiting={"reason": "ErrImagePull", "message": "no such image"})
    assert main(["status", "tiny"]) == 0
    out = capsys.readouterr().out
    assert "Not scheduled: Unschedulable: 0/3 nodes have 8 [gpu]s" in out
    assert "ReconcileError: NameTaken: pod x exists" in out
    assert "not told" not in out
    assert "Last failure: rank 2: Crash after step 59: killed by SIGKILL" in out
    assert "restart in place" in out
    rows = [line.split() for line in out.splitlines() if "tiny-worker-" in line]
    assert rows[0][:3] == ["tiny-worker-1-0", "Pending", "node-1"]  # what has something to say comes first
    assert "ErrImagePull:" in rows[0]
    assert rows[1] == ["tiny-worker-0-0", "Running", "node-0"]


def test_what_ranks_said_of_themselves_cannot_steer_the_terminal_of_who_looks(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "\x1b]0;title\x07\x1b[2J\x9b2Kbad\rluck\x1b"
    failure = CRASH.model_copy(update={"message": message, "traceback": f"File a\n\tline 1\n{message}"})
    failed = Condition(type="Failed", status="True", reason="Crash", message=message)
    job = put(cluster.store, write_job(), now=status(JobPhase.FAILED, conditions=[failed], lastFailure=failure))
    put_pod(cluster.store, job, 0, waiting={"reason": "ErrImagePull", "message": message})
    assert main(["status", "tiny"]) == 0
    out = capsys.readouterr().out
    assert all(char.isprintable() for char in out.replace("\n", "").replace("\t", ""))
    assert out.count("2Kbadluck") == 4
    assert "        line 1" in out
