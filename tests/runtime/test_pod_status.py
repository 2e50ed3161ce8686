"""What a Pod object tells of the agent's container, in the shapes that kubelets and controllers write."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster_operator.manifests.node_affinity import away_from
from trainmaster_operator.runtime.cache.cache_records import pod_entry
from trainmaster_operator.runtime.cache.pod_status import PodState, read


def pod(spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    containers = [{"name": "trainer"}, {"name": "a-sidecar"}]
    return {"spec": {"containers": containers, **(spec or {})}, "status": {"phase": "Running", **status}}


def state(name: str = "trainer", **fields: Any) -> dict[str, Any]:
    return {"name": name, "state": fields}


def ended(code: int, name: str = "trainer", **fields: Any) -> dict[str, Any]:
    return state(name, terminated={"exitCode": code, **fields})


def condition(kind: str, status: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "status": status, **fields}


def test_a_new_pod_is_pending_and_has_nothing_to_tell() -> None:
    assert read({"spec": {"containers": [{"name": "trainer"}]}}) == PodState(
        "Pending", "", "", None, "", False, False, False, False, "", False
    )


def test_a_pod_tells_when_its_place_was_found_and_whether_it_excludes_nodes() -> None:
    at = "2026-01-01T00:00:00Z"
    placed = condition("PodScheduled", "True", lastTransitionTime=at)
    assert read(pod({"nodeName": "n1"}, phase="Pending", conditions=[placed])).placed_at == at
    lacking = condition("PodScheduled", "False", reason="Unschedulable", lastTransitionTime=at)
    assert read(pod(phase="Pending", conditions=[lacking])).placed_at == ""
    assert read(pod(away_from({"containers": [{"name": "trainer"}]}, ["n2"]), phase="Pending")).keeps_away


@pytest.mark.parametrize("where", ["containerStatuses", "initContainerStatuses"])
def test_a_container_that_waits_in_vain_says_why(where: str) -> None:
    waiting = state(waiting={"reason": "ImagePullBackOff", "message": "Back-off"})
    told = read(pod(phase="Pending", **{where: [waiting]}))
    assert (told.phase, told.reason, told.message) == ("Pending", "ImagePullBackOff", "Back-off")


def test_a_pod_is_unheard_from_when_it_is_bound_until_its_kubelet_takes_note_of_it() -> None:
    bound = {"nodeName": "n1"}
    assert not read(pod(phase="Pending")).unheard
    assert read(pod(bound, phase="Pending")).unheard
    assert read(pod(bound, phase="Pending", conditions=[condition("PodScheduled", "True")])).unheard
    waiting = state(waiting={"reason": "ContainerCreating"})
    for taken in ({"startTime": "2026-01-01T00:00:00Z"}, {"initContainerStatuses": [waiting]}):
        assert not read(pod(bound, phase="Pending", **taken)).unheard
    assert not read(pod(bound, phase="Failed")).unheard


def test_a_container_that_is_merely_being_created_says_nothing() -> None:
    waiting = state(waiting={"reason": "ContainerCreating"})
    assert read(pod(phase="Pending", containerStatuses=[waiting])).reason == ""


def test_a_pod_that_no_node_takes_says_why() -> None:
    words = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims"
    told = read(
        pod(phase="Pending", conditions=[condition("PodScheduled", "False", reason="Unschedulable", message=words)])
    )
    assert (told.reason, told.message) == ("Unschedulable", words)


def test_the_agents_container_is_found_by_name_since_kubelets_sort_by_it() -> None:
    told = read(
        pod(phase="Failed", containerStatuses=[ended(3, "a-sidecar"), ended(137, reason="OOMKilled", message="m")])
    )
    assert (told.phase, told.reason, told.message, told.exit_code) == ("Failed", "OOMKilled", "m", 137)


def test_the_agents_end_is_the_pods_end_though_a_sidecar_runs_on() -> None:
    told = read(pod(containerStatuses=[state("a-sidecar", running={}), ended(1)]))
    assert (told.phase, told.lingers) == ("Failed", True)
    assert read(pod(containerStatuses=[state("a-sidecar", running={}), ended(0)])).phase == "Succeeded"


def test_a_sidecar_that_fails_is_no_failure_of_the_agent() -> None:
    told = read(pod(phase="Failed", containerStatuses=[ended(9, "a-sidecar"), ended(0)]))
    assert (told.phase, told.exit_code, told.lingers) == ("Succeeded", 0, False)
    running = read(pod(containerStatuses=[ended(9, "a-sidecar"), state(running={})]))
    assert (running.phase, running.exit_code) == ("Running", None)


def test_an_end_that_only_the_last_state_still_tells_counts() -> None:
    last = {"name": "trainer", "state": {}, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    told = read(pod(phase="Failed", containerStatuses=[last]))
    assert (told.reason, told.exit_code) == ("OOMKilled", 137)


def test_an_exit_code_of_an_init_container_is_not_the_agents() -> None:
    told = read(pod(phase="Failed", initContainerStatuses=[ended(2, "fetch", message="no such bucket")]))
    assert told.exit_code is None
    assert (told.reason, told.message) == (
        "InitContainerFailed",
        "init container fetch ended with exit code 2: no such bucket",
    )


def test_the_reason_of_the_pod_itself_comes_first() -> None:
    told = read(pod(phase="Failed", reason="Evicted", message="disk", containerStatuses=[ended(137, reason="Error")]))
    assert (told.phase, told.reason, told.message, told.exit_code) == ("Failed", "Evicted", "disk", 137)


@pytest.mark.parametrize(
    ("statuses", "rejected"),
    [
        ({}, True),
        ({"containerStatuses": [state(waiting={"reason": "ContainerCreating"})]}, True),
        ({"containerStatuses": [ended(137)]}, False),
        ({"initContainerStatuses": [ended(0, "fetch")]}, False),
    ],
)
def test_a_pod_that_its_node_turned_away_never_ran(statuses: dict[str, Any], rejected: bool) -> None:
    words = "Pod was rejected: The node had condition: [DiskPressure]. "
    told = read(pod(phase="Failed", reason="Evicted", message=words, **statuses))
    assert (told.phase, told.reason, told.rejected) == ("Failed", "Evicted", rejected)
    assert not read(pod(phase="Pending")).rejected


def test_why_the_cluster_takes_a_pod_away_is_known_however_its_container_ends() -> None:
    taken = condition("DisruptionTarget", "True", reason="EvictionByEvictionAPI")
    told = read(pod(phase="Failed", conditions=[taken], containerStatuses=[ended(143, reason="Error")]))
    assert (told.disruption, told.exit_code) == ("EvictionByEvictionAPI", 143)
    assert read(pod(conditions=[{**taken, "status": "False"}])).disruption == ""


@pytest.mark.parametrize(
    ("ready", "containers", "spec", "lost"),
    [
        ("False", "True", {}, True),
        ("Unknown", "True", {}, True),
        ("True", "True", {}, False),
        ("False", "False", {}, False),
        ("False", "True", {"readinessGates": [{"conditionType": "x"}]}, False),
    ],
)
def test_a_pod_that_is_not_ready_though_its_containers_are_is_on_a_node_that_nobody_hears(
    ready: str, containers: str, spec: dict[str, Any], lost: bool
) -> None:
    conditions = [condition("Ready", ready), condition("ContainersReady", containers)]
    assert read(pod(spec, conditions=conditions)).node_lost is lost


def test_ages_count_from_when_this_process_first_saw_it() -> None:
    obj = {**pod(), "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {}}}
    first = pod_entry(obj, None, 10.0)
    assert first.observed(13.0).running_s == 3.0
    gone = {**obj, "metadata": {**obj["metadata"], "deletionTimestamp": "2023-11-14T22:13:20Z"}}
    later = pod_entry(gone, pod_entry(gone, first, 20.0), 25.0)
    assert (later.observed(26.0).deleting_s, later.observed(26.0).running_s) == (6.0, 16.0)
    lost = {
        **obj,
        "status": {**obj["status"], "conditions": [condition("Ready", "False"), condition("ContainersReady", "True")]},
    }
    assert pod_entry(lost, pod_entry(lost, first, 20.0), 25.0).observed(26.0).node_lost_s == 6.0
    assumed = first.being_deleted(12.0)
    assert (assumed.record.deleting, assumed.observed(13.0).deleting_s) == (True, 1.0)
    assert pod_entry(obj, later, 30.0).observed(31.0).deleting_s == 0.0
