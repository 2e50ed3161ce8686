"""What the commands say of a job that no operator looks after."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.cli.conftest import WriteJob
from tests.cli.on_cluster import Cluster, lead, put, put_pod
from tests.cli.runs import status
from trainmaster_operator.cli.main import main
from trainmaster_operator.cluster.objects import timestamp
from trainmaster_operator.cluster.port import LEASE, Forbidden
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState


def micro(seconds: float) -> str:
    return timestamp(seconds)[:19] + ".000000Z"


def stepping(age_s: float, per_second: float = 1.0) -> JobState:
    now = status(step=60)
    seen = {"updatedAt": timestamp(time.time() - age_s), "etaSeconds": 40.0, "stepsPerSecond": per_second}
    return now.model_copy(update={"progress": now.progress.model_copy(update=seen), "incarnations": "0,0,1,0"})


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["status", "tiny"]) == 0
    return " ".join(capsys.readouterr().out.split())


def without_rights(cluster: Cluster) -> None:
    get, listed = cluster.get, cluster.list

    async def refuse_get(kind: str, *rest: Any) -> Any:
        if kind == LEASE:
            raise Forbidden("leases is forbidden")
        return await get(kind, *rest)

    async def refuse_list(kind: str, *rest: Any) -> Any:
        if kind == LEASE:
            raise Forbidden("leases is forbidden")
        return await listed(kind, *rest)

    cluster.get, cluster.list = refuse_get, refuse_list  # type: ignore[method-assign]


def test_while_an_operator_leads_the_end_is_promised(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    put(cluster.store, write_job(), now=stepping(age_s=5.0))
    lead(cluster.store, micro(time.time() - 5))
    said = shown(capsys)
    assert "ETA" in said
    assert "No operator" not in said


@pytest.mark.parametrize("holder", ["operator-0", ""], ids=["it died", "it gave the lease up"])
def test_without_an_operator_its_absence_is_told_and_no_end_is_promised(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str], holder: str
) -> None:
    job = put(cluster.store, write_job(), now=stepping(age_s=327.0))
    lead(cluster.store, micro(time.time() - 330.5), holder)
    for slot, incarnation in ((0, 0), (1, 0), (3, 0)):
        put_pod(cluster.store, job, slot, incarnation)
    said = shown(capsys)
    assert "No operator has led for 5m3" in said
    assert "ETA" not in said
    assert "tiny-worker-2-1 Missing it is not created again while no operator leads" in said


def test_a_pod_that_was_deleted_has_a_row_while_an_operator_leads_as_well(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    put_pod(cluster.store, put(cluster.store, write_job(), now=stepping(age_s=1.0)), 0)
    assert "tiny-worker-2-1 Missing it is created again" in shown(capsys)


@pytest.mark.parametrize("phase", [JobPhase.SUCCEEDED, JobPhase.SUSPENDED])
def test_a_job_that_needs_no_pods_misses_none(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str], phase: JobPhase
) -> None:
    put(cluster.store, write_job(), now=stepping(age_s=1.0).model_copy(update={"phase": phase}))
    assert "Missing" not in shown(capsys)


def test_a_cluster_without_the_chart_is_told(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    put(cluster.store, write_job(), now=stepping(age_s=1.0))
    cluster.store.delete(LEASE, "trainmaster-system", "trainmaster-operator")
    assert "No operator has ever led on this cluster. Install the chart" in shown(capsys)


@pytest.mark.parametrize(
    ("age_s", "per_second", "told"),
    [
        (20.0, 1.0, ""),
        (725.0, 1.0, "No operator has written progress of this job for 12m"),
        (725.0, 0.01, ""),  # ten of its steps take longer
    ],
)
def test_who_may_not_read_leases_is_told_how_old_the_progress_is(
    cluster: Cluster,
    write_job: WriteJob,
    capsys: pytest.CaptureFixture[str],
    age_s: float,
    per_second: float,
    told: str,
) -> None:
    put(cluster.store, write_job(), now=stepping(age_s, per_second))
    without_rights(cluster)
    said = shown(capsys)
    assert told in said
    assert ("may not read" in said, "ETA" in said) == (bool(told), not told)


def test_the_lease_is_looked_for_where_the_pods_say_that_their_operator_is(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    job = put(cluster.store, write_job(), now=stepping(age_s=1.0))
    put_pod(cluster.store, job, 0, url="https://trainmaster-operator.trainmaster-system.svc:8443")
    lead(cluster.store, micro(time.time() - 600))
    listed = cluster.list

    async def refuse(kind: str, *rest: Any) -> Any:
        if kind == LEASE:
            raise Forbidden("leases is forbidden")
        return await listed(kind, *rest)

    cluster.list = refuse  # type: ignore[method-assign]
    assert "No operator has led for 10m" in shown(capsys)


def test_a_job_that_is_submitted_while_no_operator_leads_is_said_to_wait(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    lead(cluster.store, micro(time.time() - 7200))
    assert main(["submit", str(write_job())]) == 0
    assert "The job waits. No operator has led for 2h" in capsys.readouterr().out
