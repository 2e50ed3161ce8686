"""What the cluster refuses for a while is told on the job in its words, and the job goes on by itself afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.kube import Object
from e2e.test_failures import assert_one_curve
from e2e.test_start import reason
from e2e.world import World

WEBHOOK = "ValidatingWebhookConfiguration"
NOT_CALLED = "failed calling webhook"


@contextmanager
def dead_webhook(world: World, *operations: str) -> Iterator[None]:
    """A policy of pods in this namespace alone, whose service has no endpoints: the API server refuses all of these
    operations with 500 as long as it is there."""
    name = f"{world.namespace}-policy"
    service = {"metadata": {"name": "policy", "namespace": world.namespace}}
    ports = {"ports": [{"port": 443}], "selector": {"app": "there-is-no-such-pod"}}
    world.kube.create({"apiVersion": "v1", "kind": "Service", **service, "spec": ports})
    webhook = {
        "name": "policy.e2e.trainmaster.dev",
        "clientConfig": {"service": {"name": "policy", "namespace": world.namespace, "path": "/validate"}},
        "rules": [{"operations": [*operations], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 2,
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": WEBHOOK}
    world.kube.create({**kind, "metadata": {"name": name}, "webhooks": [webhook]})
    try:
        yield
    finally:
        world.kube.delete(WEBHOOK, name)


def reconcile_error(status: Object) -> str:
    """What the operator can't do, as the job's condition says it; "": there is nothing."""
    found = [c for c in status.get("conditions", []) if c["type"] == "ReconcileError" and c["status"] == "True"]
    return f"{found[0]['reason']}: {found[0]['message']}" if found else ""


def test_a_webhook_that_is_down_is_named_on_the_job_which_starts_when_it_is_gone(world: World) -> None:
    with dead_webhook(world, "CREATE"):
        world.submit(world.training(steps=30))
        words = world.wait(lambda status: NOT_CALLED in reason(status) and reason(status), "the reason")
        assert words.startswith("WebhookFailed: 2 of 2 pods can't be created: ")
        assert "policy.e2e.trainmaster.dev" in words
        assert NOT_CALLED in world.kube.wait_event("WebhookFailed", "job", world.namespace)["message"]
        assert world.pods() == []
    status = world.succeeded()
    assert reason(status) == ""
    assert status["restarts"]["total"] == 0


def test_pods_that_a_dead_webhook_keeps_are_named_and_go_when_it_is_gone(world: World) -> None:
    name = world.submit(world.training(steps=5000))
    world.wait_step(5)
    with dead_webhook(world, "DELETE"):
        world.kube.patch("DistributedTrainingJob", name, world.namespace, {"spec": {"suspend": True}})
        words = world.wait(lambda status: reconcile_error(status), "the error")
        assert words.startswith("WebhookFailed: pod job-worker-")
        assert "can't be deleted" in words
        assert NOT_CALLED in words
        assert len(world.pods()) == 2
    world.wait(lambda status: not reconcile_error(status), "the error is gone")
    for slot in (0, 1):
        world.gone("Pod", world.pod(slot))


def test_a_quota_that_fills_in_a_run_and_is_raised_costs_waiting_alone(world: World) -> None:
    world.limit_pods(2)
    world.submit(world.training(steps=150))
    world.wait_step(20)
    world.limit_pods(1)
    world.kube.delete("Pod", world.pod(1), world.namespace, grace_s=0)
    words = world.wait(lambda status: "exceeded quota" in reason(status) and reason(status), "the reason")
    assert words.startswith("QuotaExceeded: 1 of 2 pods can't be created: ")
    assert "exceeded quota" in world.kube.wait_event("QuotaExceeded", "job", world.namespace)["message"]
    world.limit_pods(2)
    world.succeeded()
    assert_one_curve(world, 150)
