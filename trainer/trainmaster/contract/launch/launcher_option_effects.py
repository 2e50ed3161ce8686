"""What a launcher's options mean if Trainmaster replaces it: obeyed, ignored with a note, or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainmaster.contract.launch import horovodrun_options
from trainmaster.contract.launch.launch_errors import LaunchRefused
from trainmaster.contract.launch.launchers import ACCELERATE, DEEPSPEED, HOROVODRUN

_TARGET = {"module", "no_python", "run_path", "use_env"}  # they say what is started: obeyed
_LOGS = "Trainmaster keeps the output of each rank in its own log"
_RENDEZVOUS = "Trainmaster opens the rendezvous"
_NODES = "spec.workers says how many pods there are"
_RESTARTS = "spec.recovery says what is restarted, and how often"
_NO_LAUNCHER = "no launcher's processes run"
_COUNTED = ("gpu", "auto", "cpu", "xpu")

_TORCH_PASSED = {
    "nnodes": _NODES, "node_rank": _NODES, "standalone": _RENDEZVOUS, "rdzv_backend": _RENDEZVOUS,
    "rdzv_endpoint": _RENDEZVOUS, "rdzv_id": _RENDEZVOUS, "rdzv_conf": _RENDEZVOUS, "master_addr": _RENDEZVOUS,
    "master_port": _RENDEZVOUS, "local_addr": _RENDEZVOUS, "max_restarts": _RESTARTS, "monitor_interval": _RESTARTS,
    "start_method": _NO_LAUNCHER, "event_log_handler": _NO_LAUNCHER, "signals_to_handle": _NO_LAUNCHER,
    "shutdown_timeout": "the pod's terminationGracePeriodSeconds says how long ranks may take to end",
    "log_dir": _LOGS, "redirects": _LOGS, "tee": _LOGS, "log_line_prefix_template": _LOGS,
    "local_ranks_filter": _LOGS, "duplicate_stdout_filters": _LOGS, "duplicate_stderr_filters": _LOGS,
    "logs_specs": _LOGS, "role": "ROLE_NAME is the role of the pod",
}  # fmt: skip
_TORCH_REFUSED = {
    "virtual_local_rank": "ranks keep their own LOCAL_RANK and see all devices of their pod",
    "numa_binding": "spec.workers.pinning gives ranks cores of their own",
    "print_completion": "it runs no script",
    "help": "it runs no script",
}
_ACCELERATE_PASSED = {
    "num_machines": _NODES, "machine_rank": _NODES, "same_network": _NODES, "main_process_ip": _RENDEZVOUS,
    "main_process_port": _RENDEZVOUS, "rdzv_backend": _RENDEZVOUS, "rdzv_conf": _RENDEZVOUS,
    "max_restarts": _RESTARTS, "monitor_interval": _RESTARTS, "tee": _LOGS, "log_dir": _LOGS,
    "role": "ROLE_NAME is the role of the pod", "quiet": _NO_LAUNCHER,
    "gpu_ids": "a pod's own resources say which devices its ranks see",
}  # fmt: skip
_NO_TPU = "ranks are not started on TPUs"
_ACCELERATE_REFUSED = {
    "tpu": _NO_TPU, "tpu_cluster": _NO_TPU, "tpu_use_cluster": _NO_TPU, "no_tpu_cluster": _NO_TPU,
    "tpu_use_sudo": _NO_TPU, "vm": _NO_TPU, "env": _NO_TPU, "downcast_bf16": _NO_TPU,
    "main_training_function": _NO_TPU, "aws_access_key_id": "jobs are not sent to SageMaker",
    "aws_secret_access_key": "jobs are not sent to SageMaker", "mpirun_hostfile": "mpirun starts no ranks here",
    "mpirun_ccl": "mpirun starts no ranks here", "deepspeed_hostfile": _NODES,
    "deepspeed_exclusion_filter": _NODES, "deepspeed_inclusion_filter": _NODES,
    "deepspeed_multinode_launcher": _NODES, "help": "it runs no script",
}  # fmt: skip
# Obeyed by the variables that accelerate's own launcher makes of them.
_ACCELERATE_OBEYED = {
    *("config_file", "cpu", "multi_gpu", "mixed_precision", "num_cpu_threads_per_process", "enable_cpu_affinity"),
    *("use_deepspeed", "use_fsdp", "use_parallelism_config", "use_megatron_lm", "debug", "zero_stage"),
    *("gradient_accumulation_steps", "gradient_clipping", "zero3_init_flag", "zero3_save_16bit_model"),
}
_ACCELERATE_GROUPS = (
    "dynamo_",
    "fsdp_",
    "megatron_lm_",
    "fp8_",
    "parallelism_config_",
    "deepspeed_",
    "offload_",
)


_NO_SSH = "no rank is started by ssh"
_PINNING = "spec.workers.pinning gives ranks cores of their own"
_DEEPSPEED_PASSED = {
    "num_nodes": _NODES, "node_rank": _NODES, "master_addr": _RENDEZVOUS, "master_port": _RENDEZVOUS,
    "no_ssh": _NO_SSH, "no_ssh_check": _NO_SSH, "ssh_port": _NO_SSH, "force_multi": _NO_SSH, "save_pid": _NO_LAUNCHER,
    "enable_each_rank_log": _LOGS, "log_level": _NO_LAUNCHER, "quiet": _NO_LAUNCHER,
}  # fmt: skip
_RESOURCES = "a pod's own resources say which devices its ranks see"
_DEEPSPEED_REFUSED = {
    "hostfile": "the pods of spec.workers are the hosts, and workers.ranksPerPod are their slots",
    "include": _RESOURCES, "exclude": _RESOURCES, "launcher": "Trainmaster starts the ranks",
    "launcher_args": "Trainmaster starts the ranks", "elastic_training": "workers.min and workers.max say how many "
    "pods may train", "min_elastic_nodes": "workers.min says it", "max_elastic_nodes": "workers.max says it",
    "autotuning": "it starts trainings of its own", "bind_cores_to_rank": _PINNING, "bind_core_list": _PINNING,
    "venv_script": "the command of a rank can be [sh, -c, \". venv/bin/activate; exec deepspeed ...\"]",
    "help": "it runs no script",
}  # fmt: skip
_DEEPSPEED_OBEYED = ("module", "no_python", "no_local_rank", "num_gpus", "num_accelerators")


def notes(launcher: str, given: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each option that has no effect here. Raises LaunchRefused for one that would matter."""
    if launcher == DEEPSPEED:
        yield from _deepspeed_notes(given)
        return
    if launcher == HOROVODRUN:
        yield from horovodrun_options.notes(given)
        return
    accelerate = launcher == ACCELERATE
    passed = _ACCELERATE_PASSED if accelerate else _TORCH_PASSED
    refused = _ACCELERATE_REFUSED if accelerate else _TORCH_REFUSED
    for name in given:
        option = f"{launcher} --{name if accelerate else name.replace('_', '-')}"
        if name in refused:
            raise LaunchRefused(f"{option} can't be obeyed, since {refused[name]}: leave it out")
        if name in passed:
            yield f"{option} has no effect: {passed[name]}"
        elif name in ("nproc_per_node", "num_processes") or name in _TARGET:
            continue
        elif not accelerate or not (name in _ACCELERATE_OBEYED or name.startswith(_ACCELERATE_GROUPS)):
            raise LaunchRefused(f"{option} is not obeyed by Trainmaster, which takes its place: leave it out")


def _deepspeed_notes(given: Mapping[str, str]) -> Iterator[str]:
    for name in given:
        if name in _DEEPSPEED_REFUSED:
            raise LaunchRefused(f"deepspeed --{name} can't be obeyed, since {_DEEPSPEED_REFUSED[name]}: leave it out")
        if name in _DEEPSPEED_PASSED:
            yield f"deepspeed --{name} has no effect: {_DEEPSPEED_PASSED[name]}"
        else:
            assert name in _DEEPSPEED_OBEYED, name


def _deepspeed_ranks(given: Mapping[str, str]) -> tuple[str, str]:
    """Return (name, value) of deepspeed's option for the number of processes on each node, or "" without one."""
    for name in ("num_gpus", "num_accelerators"):
        if given.get(name, "-1") != "-1":
            return name, given[name]
    return "", ""


def of_pod(given: Mapping[str, str], ranks_per_pod: int) -> str:
    """Return what is wrong with the number of processes that torchrun was told for each pod; "" if nothing is.

    `gpu`, `auto` and `cpu` are what the job says: it knows how many ranks a pod has. ranks_per_pod: 0: unknown.
    """
    option, devices = _deepspeed_ranks(given)
    if option and not devices.isdigit():
        return f"deepspeed --{option}={devices}: a number is expected"
    if option and ranks_per_pod and int(devices) != ranks_per_pod:
        return (
            f"deepspeed --{option}={devices}, but workers.ranksPerPod is {ranks_per_pod}: write the same number in "
            f"both, or leave one of them out"
        )
    per_pod = given.get("nproc_per_node", "")
    if per_pod.isdigit() and ranks_per_pod and int(per_pod) != ranks_per_pod:
        return (
            f"torchrun --nproc-per-node={per_pod}, but workers.ranksPerPod is {ranks_per_pod}: write the same "
            f"number in both, or leave one of them out"
        )
    if per_pod and not per_pod.isdigit() and per_pod not in _COUNTED:
        return f"torchrun --nproc-per-node={per_pod}: a number is expected, or gpu, cpu or auto"
    return ""


def of_job(given: Mapping[str, str], world_size: int) -> str:
    """Return what is wrong with the number of processes that accelerate or horovodrun was told for all machines; "" if
    nothing is."""
    option, in_all = _of_all_machines(given)
    if in_all.isdigit() and int(in_all) != world_size:
        return (
            f"{option}{in_all}, but the job has {world_size} ranks (workers.replicas x ranksPerPod): write the same "
            f"number, or leave the option out"
        )
    return ""


def _of_all_machines(given: Mapping[str, str]) -> tuple[str, str]:
    """Return (option, value) of the option for the number of processes on all machines together; "" without one."""
    if horovodrun_options.NUM_PROC in given:
        return "horovodrun -np ", given[horovodrun_options.NUM_PROC]
    return "accelerate launch --num_processes=", given.get("num_processes", "")


def option_for_each_pod(given: Mapping[str, str]) -> str:
    """Return the option by which a launcher was told how many processes each pod has; "" if it was not told."""
    if given.get("nproc_per_node"):
        return "--nproc-per-node"
    name = _deepspeed_ranks(given)[0]
    return f"--{name}" if name else ""


def ranks_per_pod(given: Mapping[str, str], replicas: int) -> int | None:
    """Return how many ranks each pod has according to a launcher's options, or None if they do not say it."""
    per_pod, in_all = given.get("nproc_per_node", ""), _of_all_machines(given)[1]
    devices = _deepspeed_ranks(given)[1]
    if per_pod.isdigit() or devices.isdigit():
        return int(per_pod if per_pod.isdigit() else devices)
    if in_all.isdigit() and int(in_all) % replicas == 0:
        return int(in_all) // replicas
    return None


def is_counted(given: Mapping[str, str]) -> bool:
    """Return True if a launcher was to count devices or cores itself."""
    per_pod = given.get("nproc_per_node", "")
    return bool(per_pod) and not per_pod.isdigit()
