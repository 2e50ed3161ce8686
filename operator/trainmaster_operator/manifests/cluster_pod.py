"""What a pod needs on a Kubernetes cluster and a process of one machine doesn't: identity, storage, little privilege,
and the agent in images that don't bring it."""

from __future__ import annotations

from trainmaster.contract.wire import environment
from trainmaster_operator.api.job import DistributedTrainingJob, Framework
from trainmaster_operator.manifests import security, volumes
from trainmaster_operator.manifests.keyed_lists import Object, joined
from trainmaster_operator.manifests.pod_defaults import PodDefaults

OWN_AGENT = ["python3", "-m", "trainmaster.agent"]
BROUGHT_AGENT = ["python3", volumes.AGENT_PATH]
TERMINATION_LOG = "/dev/termination-log"
COPY_RESOURCES = {"cpu": "100m", "memory": "64Mi"}
"""Of the init container: both requests and limits, so that a pod of the class Guaranteed stays one, and quotas that
ask for numbers are content. It runs before the others, so its share adds nothing to theirs."""


def in_a_cluster(spec: Object, job: DistributedTrainingJob, defaults: PodDefaults) -> Object:
    """The pod's spec, whose first container runs the ranks, completed."""
    main, *others = spec["containers"]
    ours = main["image"] == defaults.trainer_image
    # Our own loop is part of an image that it runs in, and the agent with it.
    brought = not ours and job.spec.framework is not Framework.TRAINMASTER
    wanted = [volumes.identity()]
    if not spec.get("hostIPC"):  # then /dev/shm is the node's
        wanted.append(volumes.shared_memory(job))
    wanted += [mounted for mounted in (volumes.checkpoints(job), volumes.ram(job)) if mounted is not None]
    spec, main = (volumes.with_ram_counted(given, job) for given in (spec, main))
    values = {
        **volumes.identity_environment(),
        environment.TERMINATION_LOG: main.get("terminationMessagePath") or TERMINATION_LOG,
        **volumes.ram_environment(job),
    }
    chosen = security.for_our_image if ours else security.for_their_image
    context = chosen(spec, main, defaults.security)
    others = security.filled_up(spec, others, defaults.security)
    if spec.get("initContainers"):
        spec = {**spec, "initContainers": security.filled_up(spec, spec["initContainers"], defaults.security)}
    if ours:
        wanted += volumes.scratch()
        theirs = {variable.get("name") for variable in main["env"]}
        places = {"HOME": volumes.HOME_PATH, "TMPDIR": volumes.TMP_PATH}
        values |= {name: path for name, path in places.items() if name not in theirs}
        if of_volumes := security.of_volumes(spec, defaults.security):
            spec = {**spec, "securityContext": of_volumes}
    if brought:
        wanted.append(volumes.agent())
        spec = {**spec, "initContainers": [_bringer(defaults), *_others(spec)]}
    variables = [*({"name": name, "value": value} for name, value in values.items()), *_cores(main)]
    main = {
        **main,
        "command": list(BROUGHT_AGENT if brought else OWN_AGENT),
        "env": joined(main["env"], variables),
    }
    if context:
        main["securityContext"] = context
    if spec.get("hostNetwork"):
        spec = {"dnsPolicy": "ClusterFirstWithHostNet", **spec}  # the operator has a name of the cluster's
    spec, main = volumes.with_volumes(spec, main, wanted)
    return {**spec, "containers": [main, *others]}


def _cores(main: Object) -> list[Object]:
    """The limit, else what was asked for: a node's other cores belong to other pods, and threads of ranks that get none
    hold up all others."""
    resources = main.get("resources") or {}
    for kind in ("limits", "requests"):
        if "cpu" in (resources.get(kind) or {}):
            reference = {"resource": f"{kind}.cpu", "divisor": "1m"}
            return [{"name": environment.CPU_MILLIS, "valueFrom": {"resourceFieldRef": reference}}]
    return []


def _bringer(defaults: PodDefaults) -> Object:
    mounted = volumes.agent()
    return {
        "name": mounted.volume["name"],
        "image": defaults.agent_image,
        "command": ["cp", "-r", f"{volumes.AGENT_PATH}/.", "/target/"],
        "resources": {"requests": dict(COPY_RESOURCES), "limits": dict(COPY_RESOURCES)},
        "securityContext": security.strictest(defaults.security),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": mounted.volume["name"], "mountPath": "/target"}],
    }


def _others(spec: Object) -> list[Object]:
    return [given for given in spec.get("initContainers") or [] if given.get("name") != "trainmaster-agent"]
