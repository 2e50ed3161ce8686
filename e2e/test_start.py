"""Jobs that can't start: the reason stands in the status, and nobody else is held up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.kube import JOB, Object
from e2e.world import PLAIN, SMALL, World

HUGE = {"requests": {"cpu": "900"}}


def reason(status: Object) -> str:
    """What the job says of its start."""
    found = [c for c in status.get("conditions", []) if c["type"] == "Scheduled" and c["status"] == "False"]
    return f"{found[0].get('reason', '')}: {found[0].get('message', '')}" if found else ""


def test_an_image_that_cant_be_pulled(world: World) -> None:
    job = world.script(["true"], image="registry.invalid/nobody/nothing:1", pendingDeadlineSeconds=40)
    world.submit(job)
    words = world.wait(lambda status: "Image" in reason(status) and reason(status), "the reason")
    assert "registry.invalid/nobody/nothing:1" in words
    status = world.wait_phase("Failed")
    assert status["lastFailure"]["cause"] == "ImageError"
    assert "registry.invalid" in status["lastFailure"]["message"]


def test_a_volume_that_doesnt_mount(world: World) -> None:
    volumes = [{"name": "settings", "configMap": {"name": "there-is-no-such-map"}}]
    mounts = [{"name": "settings", "mountPath": "/settings"}]
    world.submit(world.script(["true"], template={"volumes": volumes}, container={"volumeMounts": mounts}))
    words = world.wait(lambda status: reason(status), "the reason")
    assert words.startswith("FailedMount")
    assert "there-is-no-such-map" in words


def test_a_job_that_fits_on_no_node(world: World) -> None:
    world.submit(world.script(["true"], container={"resources": HUGE}, pendingDeadlineSeconds=600))
    words = world.wait(lambda status: reason(status), "the reason")
    assert "Unschedulable" in words
    assert "cpu" in words


def test_a_claim_that_isnt_bound(world: World) -> None:
    world.kube.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "nowhere", "namespace": world.namespace},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "volumeName": "there-is-no-such-volume",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
    )
    world.submit(world.training(checkpoint={"volume": {"claim": "nowhere"}}))
    words = world.wait(lambda status: reason(status), "the reason")
    assert "PersistentVolumeClaim" in words or "nowhere" in words


def test_a_quota_that_refuses_the_third_pod(world: World) -> None:
    world.limit_pods(2)
    world.submit(world.training(replicas=3, steps=30))
    world.wait(lambda status: "exceeded quota" in reason(status), "the quota's refusal is the reason")
    world.limit_pods(3)
    world.succeeded()


def test_two_jobs_of_which_each_fits_only_half(world: World) -> None:
    """Neither waits for ever with half of its pods: both get done."""
    world.limit_pods(3)
    command = ["python3", "-c", "print('trained')"]
    for name in ("left", "right"):
        world.kube.create(world.script(command, name=name, cleanPodPolicy="All"))
    for name in ("left", "right"):
        world.succeeded(name, limit_s=180)


def test_a_foreign_pod_has_the_name(world: World) -> None:
    foreign: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": world.pod(1), "namespace": world.namespace},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": PLAIN,
                    "command": ["sleep", "1000"],
                    "resources": SMALL,
                }
            ],
            "terminationGracePeriodSeconds": 0,
        },
    }
    world.kube.create(foreign)
    world.submit(world.training(steps=30))
    words = world.wait(lambda status: reason(status), "the reason")
    assert world.pod(1) in words
    assert world.kube.get("Pod", world.pod(1), world.namespace)["metadata"].get("ownerReferences") is None
    world.kube.delete("Pod", world.pod(1), world.namespace, grace_s=0)
    world.succeeded()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"replica": 4}, "replica"),
    "unknown framework": ({"framework": "Theano"}, "Theano"),
    "no pods": ({"workers": {"replicas": 0}}, "replicas"),
    "too many ranks in a pod": ({"workers": {"replicas": 1, "ranksPerPod": 1000}}, "ranksPerPod"),
    "degrees that don't multiply": (
        {"workers": {"replicas": 4}, "training": {"parallelism": {"dpReplicate": 3, "dpShard": 2}}},
        "dpReplicate x dpShard",
    ),
    "a batch that can't be divided": (
        {"workers": {"replicas": 3}, "training": {"batch": {"global": 16}, "parallelism": {"dpShard": 3}}},
        "global",
    ),
    "a batch that can't scale": (
        {"training": {"batch": {"global": 16, "scaling": {"ranks": 3, "learningRate": "Linear"}}}},
        "scaling.ranks",
    ),
    "no training": ({"framework": "Trainmaster", "training": None}, "training"),
    "training beside a script": ({"framework": "PyTorch"}, "training"),
    "a negative deadline": ({"activeDeadlineSeconds": -1}, "activeDeadlineSeconds"),
    "two checkpoint volumes": ({"checkpoint": {"volume": {"claim": "a", "hostPath": "/b"}}}, "volume"),
}


@pytest.mark.parametrize("name", BAD)
def test_the_api_server_refuses_bad_manifests_without_us(world: World, name: str) -> None:
    change, word = BAD[name]
    job = world.training()
    for key, value in change.items():
        if isinstance(value, dict):
            job["spec"][key] = {**job["spec"].get(key, {}), **value}
        elif value is None:
            del job["spec"][key]
        else:
            job["spec"][key] = value
    said = world.kube.kubectl("apply", "-f", "-", stdin=json.dumps(job), check=False)
    assert word in said, said
    assert world.kube.find(JOB, "job", world.namespace) is None


def test_another_pods_token_opens_nothing(world: World) -> None:
    """401 for no token, a wrong one, and one of the pod for another audience; 403 for the pod's own token with the
    identity of another pod."""
    world.submit(world.training(steps=5000))
    world.wait_step(5)
    pod, other = world.pod(0), world.pod(1)
    bound = ("--audience=another", "--bound-object-kind=Pod", f"--bound-object-name={pod}")
    elsewhere = world.kube.kubectl("create", "token", "default", "-n", world.namespace, *bound).strip()
    answers = {"": "401", "nonsense": "401", "eyJhbGciOiJub25lIn0.e30.": "401", elsewhere: "401", OWN_TOKEN: "403"}
    uid = world.uids()[other]
    said = {token: world.execute(pod, "python3", "-c", _ASK, token, uid).strip() for token in answers}
    assert said == answers


OWN_TOKEN = "own"
"""Stands for the token that the pod's agent shows to the operator."""

_ASK = r"""
import json, os, ssl, sys, urllib.error, urllib.request
token, pod_uid = sys.argv[1:]
if token == "own":
    token = open(os.environ["TRAINMASTER_TOKEN_FILE"]).read().strip()
context = ssl.create_default_context(cafile=os.environ["TRAINMASTER_CA_FILE"])
url = os.environ["TRAINMASTER_OPERATOR_URL"] + "/v1/join"
identity = {
    "job_uid": os.environ["TRAINMASTER_JOB_UID"], "namespace": os.environ["TRAINMASTER_NAMESPACE"],
    "job": os.environ["TRAINMASTER_JOB"], "role": "worker", "slot": 1, "incarnation": 0, "pod_uid": pod_uid,
}
headers = {"Authorization": "Bearer " + token} if token else {}
while True:
    request = urllib.request.Request(url, json.dumps({"identity": identity, "protocol": 1}).encode(), headers)
    try:
        print(urllib.request.urlopen(request, context=context).status)
    except urllib.error.HTTPError as error:
        if error.code == 421:
            url = json.load(error)["leader"] + "/v1/join"
            context.check_hostname = False
            continue
        print(error.code)
    break
"""
