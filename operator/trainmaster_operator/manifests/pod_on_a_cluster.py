"""What a pod needs on a Kubernetes cluster and a process on one machine does not: identity, storage, few privileges,
and the agent in images that do not contain it."""

from __future__ import annotations

from trainmaster.contract.wire import environment
from trainmaster_operator.api.job_spec import DistributedTrainingJob, Framework
from trainmaster_operator.manifests import agent_identity, resources, security, volumes
from trainmaster_operator.manifests.agent_init_container import agent_bringer, without_bringer
from trainmaster_operator.manifests.keyed_lists import Object, joined
from trainmaster_operator.manifests.pod_defaults import PodDefaults

OWN_AGENT = ["python3", "-m", "trainmaster.agent"]
BROUGHT_AGENT = ["python3", volumes.AGENT_PATH]
TERMINATION_LOG = "/dev/termination-log"


def in_a_cluster(spec: Object, job: DistributedTrainingJob, defaults: PodDefaults) -> Object:
    """Return the completed spec of a pod, whose first container runs the ranks."""
    main, *others = spec["containers"]
    ours = main["image"] == defaults.trainer_image
    # An image that runs the built-in trainer contains the agent too.
    brought = not ours and job.spec.framework is not Framework.TRAINMASTER
    wanted = [agent_identity.identity()]
    if not spec.get("hostIPC"):  # With hostIPC, /dev/shm is that of the node.
        wanted.append(volumes.shared_memory(job))
    wanted += [mounted for mounted in (volumes.checkpoints(job), volumes.ram(job)) if mounted is not None]
    spec, main = (resources.with_ram_counted(given, job) for given in (spec, main))
    values = {
        **agent_identity.identity_environment(),
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
        spec = {**spec, "initContainers": [agent_bringer(defaults), *without_bringer(spec)]}
    variables = [*({"name": name, "value": value} for name, value in values.items()), *_cores(main)]
    main = {
        **main,
        "command": list(BROUGHT_AGENT if brought else OWN_AGENT),
        "env": joined(main["env"], variables),
    }
    if context:
        main["securityContext"] = context
    if spec.get("hostNetwork"):
        # The address of the operator is a name of the cluster's DNS.
        spec = {"dnsPolicy": "ClusterFirstWithHostNet", **spec}
    spec, main = volumes.with_volumes(spec, main, wanted)
    return {**spec, "containers": [main, *others]}


def _cores(main: Object) -> list[Object]:
    """Return the variable with the CPU limit of a container, or else its request. The other cores of a node belong
    to other pods, and a rank with more threads than cores delays all others."""
    resources = main.get("resources") or {}
    for kind in ("limits", "requests"):
        if "cpu" in (resources.get(kind) or {}):
            reference = {"resource": f"{kind}.cpu", "divisor": "1m"}
            return [{"name": environment.CPU_MILLIS, "valueFrom": {"resourceFieldRef": reference}}]
    return []
