"""What a pod gets on a cluster, and what of its template is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.manifests.pods import build_pod
from tests.manifests.test_golden import CLUSTER, EVERYTHING, OPENSHIFT, SMALLEST, TRAINING, job, script
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.manifests.claim_access_modes import claim_problem

STORAGE = {"directory": "/checkpoints"}
SIDE = {"initContainers": [{"name": "fetch", "image": "example/fetch:1"}]}


def spec(of: DistributedTrainingJob) -> dict[str, Any]:
    built: dict[str, Any] = build_pod(of, "worker", 0, 0, CLUSTER)["spec"]
    return built


def ours(container: dict[str, Any] | None = None, pod: dict[str, Any] | None = None, **fields: Any) -> Any:
    template = {"spec": {**(pod or {}), "containers": [{"name": "main", **(container or {})}]}}
    return job(training=TRAINING, workers={"replicas": 2, "template": template}, **fields)


def mounts(built: dict[str, Any]) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in built["containers"][0].get("volumeMounts") or []}


def volume(built: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [v for v in built["volumes"] if v["name"] == name]
    return found


def environ(built: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in built["containers"][0]["env"]}


def violations(built: dict[str, Any]) -> list[str]:
    """Of the "restricted" Pod Security Standard, as far as our builders could break it."""
    found = [f"host: {name}" for name in ("hostNetwork", "hostPID", "hostIPC") if built.get(name)]
    found += [f"volume: {v['name']}" for v in built["volumes"] if "hostPath" in v]
    for container in [*built.get("initContainers", []), *built["containers"]]:
        context = {**built.get("securityContext", {}), **container.get("securityContext", {})}
        wrong = {
            "runAsNonRoot": context.get("runAsNonRoot") is not True,
            "runAsUser": context.get("runAsUser") == 0,
            "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is not False,
            "capabilities": (context.get("capabilities") or {}).get("drop") != ["ALL"],
            "seccompProfile": (context.get("seccompProfile") or {}).get("type") != "RuntimeDefault",
        }
        found += [f"{container['name']}: {name}" for name, bad in wrong.items() if bad]
    return found


def test_a_pod_with_our_image_passes_the_restricted_profile_and_can_write_where_programs_do() -> None:
    built = spec(SMALLEST)
    assert violations(built) == []
    assert built["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"/tmp", "/home/trainmaster", "/dev/shm"} <= set(mounts(built))
    assert (environ(built)["HOME"], environ(built)["TMPDIR"]) == ("/home/trainmaster", "/tmp")
    assert built["automountServiceAccountToken"] is False


def test_the_container_that_brings_the_agent_passes_the_restricted_profile() -> None:
    built = spec(script({"image": "python:3.12"}))
    assert [words for words in violations(built) if words.startswith("trainmaster-agent")] == []


@pytest.mark.parametrize(
    ("pod", "container", "expected"),
    [
        ({"runAsUser": 1000}, {}, {"runAsNonRoot": True, "runAsUser": None, "runAsGroup": None}),
        ({}, {"runAsUser": 0}, {"runAsNonRoot": None, "runAsUser": 0, "runAsGroup": None}),
        ({"runAsNonRoot": False}, {}, {"runAsNonRoot": None, "runAsUser": None}),
        ({"runAsNonRoot": True}, {}, {"runAsNonRoot": None, "runAsUser": 65532}),
        ({}, {"readOnlyRootFilesystem": False}, {"readOnlyRootFilesystem": False, "runAsUser": 65532}),
        ({}, {"privileged": True}, {"allowPrivilegeEscalation": None, "seccompProfile": None}),
        ({}, {"capabilities": {"add": ["CAP_SYS_ADMIN"]}}, {"allowPrivilegeEscalation": None}),
        ({}, {"capabilities": {"add": ["IPC_LOCK"]}}, {"capabilities": {"add": ["IPC_LOCK"]}}),
        ({"seccompProfile": {"type": "Unconfined"}}, {}, {"seccompProfile": None}),
    ],
    ids=str,
)
def test_what_the_template_says_of_privileges_stays(
    pod: dict[str, Any], container: dict[str, Any], expected: dict[str, Any]
) -> None:
    built = spec(ours({"securityContext": container}, {"securityContext": pod}))
    context = built["containers"][0]["securityContext"]
    assert {name: context.get(name) for name in expected} == expected
    assert {name: built["securityContext"].get(name) for name in pod} == pod


def test_nothing_is_taken_from_an_image_of_a_user_that_it_might_need() -> None:
    built = spec(script({"image": "example/needs-root:1"}))
    assert built["containers"][0]["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert "securityContext" not in built
    assert "HOME" not in environ(built)
    assert "/tmp" not in mounts(built)


def test_the_agent_is_brought_into_images_that_do_not_have_it_before_anything_else_runs() -> None:
    built = spec(script({"image": "python:3.12"}, {"initContainers": [{"name": "fetch", "image": "f"}]}))
    assert [container["name"] for container in built["initContainers"]] == ["trainmaster-agent", "fetch"]
    assert built["initContainers"][0]["image"] == CLUSTER.agent_image
    assert built["containers"][0]["command"] == ["python3", "/opt/trainmaster"]
    assert mounts(built)["/opt/trainmaster"] == "trainmaster-agent"
    for image in ({}, {"image": CLUSTER.trainer_image}):
        built = spec(script(image))
        assert "initContainers" not in built
        assert built["containers"][0]["command"] == ["python3", "-m", "trainmaster.agent"]


def test_an_image_that_runs_our_own_loop_has_its_agent() -> None:
    built = spec(ours({"image": "example/derived:1"}))
    assert "initContainers" not in built
    assert built["containers"][0]["command"] == ["python3", "-m", "trainmaster.agent"]


def test_the_copying_container_keeps_a_guaranteed_pod_guaranteed() -> None:
    resources = spec(script({"image": "python:3.12"}))["initContainers"][0]["resources"]
    assert resources["limits"] == resources["requests"]
    assert set(resources["limits"]) == {"cpu", "memory"}


def test_the_identity_is_a_short_lived_token_for_us_alone_and_our_certificates() -> None:
    built = spec(SMALLEST)
    token, bundle = volume(built, "trainmaster-identity")["projected"]["sources"]
    assert token["serviceAccountToken"] == {"audience": "trainmaster", "expirationSeconds": 3600, "path": "token"}
    assert bundle["configMap"]["name"] == "trainmaster-ca"
    assert bundle["configMap"]["optional"] is False
    assert environ(built)["TRAINMASTER_TOKEN_FILE"] == "/var/run/trainmaster/token"
    assert environ(built)["TRAINMASTER_CA_FILE"] == "/var/run/trainmaster/ca.crt"


@pytest.mark.parametrize(
    ("workers", "size"), [({}, "1Gi"), ({"ranksPerPod": 8}, "8Gi"), ({"sharedMemory": "512Mi"}, "512Mi")]
)
def test_shared_memory_has_a_size(workers: dict[str, Any], size: str) -> None:
    training = {**TRAINING, "parallelism": {}}
    built = spec(job(training=training, workers={"replicas": 1, **workers}))
    assert volume(built, "trainmaster-shm")["emptyDir"] == {"medium": "Memory", "sizeLimit": size}


def test_a_job_without_storage_is_charged_for_no_memory_tier() -> None:
    """A LimitRange that allows what the template asks for allows the pod."""
    given = {"requests": {"memory": "64Mi"}, "limits": {"memory": "64Mi"}}
    built = spec(ours({"resources": given}))
    assert built["containers"][0]["resources"] == given
    assert "trainmaster-ram" not in {v["name"] for v in built["volumes"]}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"limits": {"nvidia.com/gpu": 8}}, {"limits": {"nvidia.com/gpu": 8}}),
        ({"limits": {"memory": "32Gi"}}, {"limits": {"memory": "36Gi"}}),
        (
            {"requests": {"memory": "1500M", "cpu": 1}, "limits": {"memory": 2**31}},
            {"requests": {"memory": "5794967296", "cpu": 1}, "limits": {"memory": "6Gi"}},
        ),
        ({"limits": {"memory": "a lot"}}, {"limits": {"memory": "a lot"}}),
    ],
    ids=str,
)
def test_the_memory_tier_is_added_to_the_memory_that_the_template_names(given: Any, expected: Any) -> None:
    checkpoint = {**STORAGE, "ram": {"limit": "4Gi"}}
    built = spec(ours({"resources": given}, {"resources": given}, checkpoint=checkpoint))
    assert built["containers"][0]["resources"] == expected
    assert built["resources"] == expected
    assert volume(built, "trainmaster-ram")["emptyDir"] == {"medium": "Memory", "sizeLimit": "4Gi"}


@pytest.mark.parametrize(
    ("pod", "size"),
    [
        (ours(checkpoint=STORAGE), "1Gi"),
        (job(training={**TRAINING, "parallelism": {}}, workers={"ranksPerPod": 8}, checkpoint=STORAGE), "8Gi"),
        (script(checkpoint=STORAGE), None),
        (script(checkpoint={**STORAGE, "ram": {"every": 10}}), "1Gi"),
        (ours(checkpoint={**STORAGE, "ram": {"limit": "0"}}), None),
        (ours(), None),
    ],
    ids=[
        "our loop",
        "eight ranks",
        "a script",
        "a script that asks for it",
        "none",
        "without storage",
    ],
)
def test_our_own_loop_has_a_memory_tier_unless_it_is_told_otherwise(pod: Any, size: str | None) -> None:
    built = spec(pod)
    budget = int(environ(built).get("TRAINMASTER_RAM_BUDGET", "0"))
    if size is None:
        assert "trainmaster-ram" not in {v["name"] for v in built["volumes"]}
        assert not any("_RAM_" in name for name in environ(built))
    else:
        assert volume(built, "trainmaster-ram")["emptyDir"]["sizeLimit"] == size
        assert mounts(built)[environ(built)["TRAINMASTER_RAM_DIR"]] == "trainmaster-ram"
        assert 0.9 * int(size[0]) * 2**30 < budget < int(size[0]) * 2**30
        every = pod.spec.ram.every
        assert environ(built).get("TRAINMASTER_RAM_EVERY") == (None if every is None else str(every))


def test_what_the_template_mounts_itself_at_a_place_of_ours_stays() -> None:
    given = [{"name": "mine", "mountPath": "/dev/shm"}, {"name": "mine", "mountPath": "/tmp/"}]
    built = spec(ours({"volumeMounts": given}, {"volumes": [{"name": "mine", "emptyDir": {}}]}))
    assert mounts(built)["/dev/shm"] == "mine"
    assert mounts(built)["/tmp/"] == "mine"
    assert "/tmp" not in mounts(built)
    assert not {"trainmaster-shm", "trainmaster-tmp"} & {v["name"] for v in built["volumes"]}


def test_nobody_takes_the_place_of_the_identity() -> None:
    given = [{"name": "trainmaster-identity", "mountPath": "/var/run/trainmaster/"}]
    built = spec(ours({"volumeMounts": given}, {"volumes": [{"name": "trainmaster-identity", "emptyDir": {}}]}))
    assert "projected" in volume(built, "trainmaster-identity")
    assert mounts(built)["/var/run/trainmaster"] == "trainmaster-identity"
    assert "/var/run/trainmaster/" not in mounts(built)


def test_variables_of_the_user_stay_where_they_are_only_defaults_of_ours() -> None:
    built = spec(ours({"env": [{"name": "HOME", "value": "/elsewhere"}]}))
    assert environ(built)["HOME"] == "/elsewhere"


@pytest.mark.parametrize(
    ("checkpoint", "source", "place", "folder"),
    [
        ({"volume": {"claim": "c"}}, {"persistentVolumeClaim": {"claimName": "c"}}, "/checkpoints", "/checkpoints"),
        (
            {"volume": {"claim": "c"}, "directory": "/checkpoints/run-7"},
            {"persistentVolumeClaim": {"claimName": "c"}},
            *("/checkpoints", "/checkpoints/run-7"),
        ),
        (
            {"volume": {"hostPath": "/mnt/x"}, "directory": "/elsewhere"},
            {"hostPath": {"path": "/mnt/x", "type": "DirectoryOrCreate"}},
            *("/elsewhere", "/elsewhere"),
        ),
    ],
    ids=str,
)
def test_a_checkpoint_volume_is_mounted_where_checkpoints_lie(
    checkpoint: dict[str, Any], source: dict[str, Any], place: str, folder: str
) -> None:
    built = spec(ours(checkpoint=checkpoint))
    assert volume(built, "trainmaster-checkpoints") == {"name": "trainmaster-checkpoints", **source}
    assert mounts(built)[place] == "trainmaster-checkpoints"
    assert environ(built)["TRAINMASTER_CHECKPOINT_DIR"] == folder


def test_without_a_volume_a_directory_is_the_templates_business() -> None:
    built = spec(ours(checkpoint={"directory": "/data/ckpt"}))
    assert environ(built)["TRAINMASTER_CHECKPOINT_DIR"] == "/data/ckpt"
    assert "/data/ckpt" not in mounts(built)
    assert "TRAINMASTER_CHECKPOINT_DIR" not in environ(spec(SMALLEST))


@pytest.mark.parametrize(
    "job", [SMALLEST, script({"image": "example/any:1"}, SIDE), EVERYTHING], ids=lambda j: j.metadata.name
)
def test_no_container_names_a_user_where_the_cluster_chooses_it(job: DistributedTrainingJob) -> None:
    built = build_pod(job, "worker", 0, 0, OPENSHIFT)["spec"]
    every = [built, *built.get("initContainers", []), *built["containers"]]
    named = {name for one in every for name in one.get("securityContext") or {}}
    assert named & {"runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy"} == set()


def test_an_image_of_a_user_is_filled_up_to_the_restricted_profile_where_the_installation_asks_for_it() -> None:
    built = build_pod(script({"image": "example/any:1"}, SIDE), "worker", 0, 0, OPENSHIFT)["spec"]
    assert [one["name"] for one in built["initContainers"]] == ["trainmaster-agent", "fetch"]
    assert violations(built) == []
    assert "readOnlyRootFilesystem" not in built["containers"][0]["securityContext"], "the profile does not ask for it"


@pytest.mark.parametrize(
    ("pod", "container", "expected"),
    [
        ({"runAsUser": 1000}, {}, {"runAsNonRoot": True, "runAsUser": None}),
        ({}, {"runAsUser": 0}, {"runAsNonRoot": None, "runAsUser": 0}),
        ({"runAsNonRoot": False}, {}, {"runAsNonRoot": None}),
        ({}, {"privileged": True}, {"allowPrivilegeEscalation": None, "seccompProfile": None}),
        (
            {},
            {"capabilities": {"add": ["NET_BIND_SERVICE"]}},
            {"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}},
        ),
        ({}, {"capabilities": {"drop": ["CHOWN"]}}, {"capabilities": {"drop": ["CHOWN"]}}),
        ({"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}}, {}, {"seccompProfile": None}),
    ],
    ids=str,
)
def test_what_the_template_says_stays_where_the_rest_is_filled_up(
    pod: dict[str, Any], container: dict[str, Any], expected: dict[str, Any]
) -> None:
    asked = script({"image": "example/any:1", "securityContext": container}, {"securityContext": pod})
    built = build_pod(asked, "worker", 0, 0, OPENSHIFT)["spec"]
    context = built["containers"][0]["securityContext"]
    assert {name: context.get(name) for name in expected} == expected
    assert {name: built["securityContext"].get(name) for name in pod} == pod


def test_a_pod_in_the_nodes_network_still_finds_the_operator() -> None:
    assert spec(ours(pod={"hostNetwork": True}))["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert spec(ours(pod={"hostNetwork": True, "dnsPolicy": "Default"}))["dnsPolicy"] == "Default"
    assert "trainmaster-shm" not in {v["name"] for v in spec(ours(pod={"hostIPC": True}))["volumes"]}


@pytest.mark.parametrize(
    ("modes", "bound", "pods", "problem"),
    [
        (["ReadWriteMany"], None, 8, ""),
        (["ReadWriteOnce"], None, 1, ""),
        (["ReadWriteOnce"], None, 4, ""),
        (["ReadWriteOnce"], ["ReadWriteOnce", "ReadWriteMany"], 2, ""),
        (["ReadWriteOncePod"], None, 1, ""),
        ([], None, 1, "cannot be written to"),
        (["ReadOnlyMany"], None, 1, "cannot be written to (ReadOnlyMany)"),
        (["ReadWriteOncePod"], None, 2, "is ReadWriteOncePod, for one pod only, and the job has 2 pods"),
    ],
)
def test_a_claim_that_the_pods_cannot_share_is_told_in_a_sentence(
    modes: list[str], bound: list[str] | None, pods: int, problem: str
) -> None:
    claim = {"metadata": {"name": "c"}, "spec": {"accessModes": modes}, "status": {"accessModes": bound}}
    said = claim_problem(claim, pods)
    assert (problem in said) if problem else said == ""
