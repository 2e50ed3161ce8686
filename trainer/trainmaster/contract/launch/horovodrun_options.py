"""The options of horovodrun: what they mean if Trainmaster takes its place, and the variables that it makes of them.

They are those of Horovod 0.28.1, its last release.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from trainmaster.contract.launch.launch_errors import LaunchRefused

NUM_PROC = "num_proc"
"""The name of the option that says how many processes there are on all hosts together."""
APPENDED = ("network_interface", "network_interfaces")
"""The options that may be given several times, each time with further values."""

SHORT = {
    "np": NUM_PROC, "H": "hosts", "hostfile": "hostfile", "p": "ssh_port", "i": "ssh_identity_file", "v": "version",
    "cb": "check_build", "prefix-timestamp": "prefix_output_with_timestamp", "h": "help",
}  # fmt: skip
"""The options with one dash, which may be longer than a letter."""

_SYNONYMS = {
    "min_np": "min_num_proc", "max_np": "max_num_proc", "network_interface": "network_interfaces",
    "log_hide_timestamp": "log_without_timestamp", "no_log_hide_timestamp": "log_with_timestamp",
}  # fmt: skip
_MEBIBYTE = 1024 * 1024
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


def _count(text: str) -> str:
    return str(int(text)) if re.fullmatch(r"\d+", text) else ""


def _bytes(text: str) -> str:
    return str(int(text) * _MEBIBYTE) if re.fullmatch(r"\d+", text) else ""


def _number(text: str) -> str:
    return str(float(text)) if re.fullmatch(r"\d+\.?\d*|\.\d+", text) else ""


def _fraction(text: str) -> str:
    return _number(text) if _number(text) and float(text) <= 1 else ""


def _level(text: str) -> str:
    return text if text in _LEVELS else ""


def _name(text: str) -> str:
    return text


_WHOLE = "a whole number of at least 0 is expected"
_FROM_0_TO_1 = "a number from 0 to 1 is expected"
_FILE = "the name of a file is expected"
# The variable of each option with a value, the function that writes its value ("" for a wrong one), and what is right.
_Value = tuple[str, Callable[[str], str], str]
_VALUES: dict[str, _Value] = {
    "fusion_threshold_mb": ("HOROVOD_FUSION_THRESHOLD", _bytes, _WHOLE),
    "cycle_time_ms": ("HOROVOD_CYCLE_TIME", _number, "a number of at least 0 is expected"),
    "cache_capacity": ("HOROVOD_CACHE_CAPACITY", _count, _WHOLE),
    "stall_check_warning_time_seconds": ("HOROVOD_STALL_CHECK_TIME_SECONDS", _count, _WHOLE),
    "stall_check_shutdown_time_seconds": ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", _count, _WHOLE),
    "num_nccl_streams": ("HOROVOD_NUM_NCCL_STREAMS", _count, _WHOLE),
    "thread_affinity": ("HOROVOD_THREAD_AFFINITY", _count, _WHOLE),
    "gloo_timeout_seconds": ("HOROVOD_GLOO_TIMEOUT_SECONDS", _count, _WHOLE),
    "log_level": ("HOROVOD_LOG_LEVEL", _level, f"one of {', '.join(_LEVELS)} is expected"),
    "timeline_filename": ("HOROVOD_TIMELINE", _name, _FILE),
    "autotune_log_file": ("HOROVOD_AUTOTUNE_LOG", _name, _FILE),
    "autotune_warmup_samples": ("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", _count, _WHOLE),
    "autotune_steps_per_sample": ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", _count, _WHOLE),
    "autotune_bayes_opt_max_samples": ("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", _count, _WHOLE),
    "autotune_gaussian_process_noise": ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", _fraction, _FROM_0_TO_1),
}
_FLAGS = {
    "hierarchical_allreduce": {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"},
    "no_hierarchical_allreduce": {"HOROVOD_HIERARCHICAL_ALLREDUCE": "0"},
    "hierarchical_allgather": {"HOROVOD_HIERARCHICAL_ALLGATHER": "1"},
    "no_hierarchical_allgather": {"HOROVOD_HIERARCHICAL_ALLGATHER": "0"},
    "torus_allreduce": {"HOROVOD_TORUS_ALLREDUCE": "1"},
    "no_torus_allreduce": {"HOROVOD_TORUS_ALLREDUCE": "0"},
    "autotune": {"HOROVOD_AUTOTUNE": "1"},
    "no_autotune": {"HOROVOD_AUTOTUNE": "0"},
    "timeline_mark_cycles": {"HOROVOD_TIMELINE_MARK_CYCLES": "1"},
    "no_timeline_mark_cycles": {"HOROVOD_TIMELINE_MARK_CYCLES": "0"},
    "no_stall_check": {"HOROVOD_STALL_CHECK_DISABLE": "1"},
    "stall_check": {"HOROVOD_STALL_CHECK_DISABLE": "0"},
    "mpi_threads_disable": {"HOROVOD_MPI_THREADS_DISABLE": "1"},
    "no_mpi_threads_disable": {"HOROVOD_MPI_THREADS_DISABLE": "0"},
    "tcp": {"NCCL_IB_DISABLE": "1"},
    "log_with_timestamp": {"HOROVOD_LOG_HIDE_TIME": "0"},
    "log_without_timestamp": {"HOROVOD_LOG_HIDE_TIME": "1"},
    "gloo": {},  # ranks meet over gloo in any case
}
"""The variables of each option without a value."""

_LOGS = "Trainmaster keeps the output of each rank in its own log"
_NO_LAUNCHER = "no launcher's processes run"
_NO_SSH = "no rank is started by ssh"
_PASSED = {
    "hosts": "the pods of spec.workers are the hosts", "ssh_port": _NO_SSH, "ssh_identity_file": _NO_SSH,
    "disable_cache": _NO_LAUNCHER, "start_timeout": _NO_LAUNCHER, "verbose": _NO_LAUNCHER, "output_filename": _LOGS,
    "prefix_output_with_timestamp": _LOGS,
}  # fmt: skip
_HOSTS = "the pods of spec.workers are the hosts, and workers.ranksPerPod are their slots"
_ELASTIC = "Horovod's elastic mode is not used, and workers.min and workers.max say how many pods may train"
_NO_MPI = "ranks meet over gloo, and MPI starts none of them"
_NO_SCRIPT = "it runs no script"
_REFUSED = {
    "hostfile": _HOSTS, "mpi": _NO_MPI, "jsrun": _NO_MPI, "mpi_args": _NO_MPI, "binding_args": _NO_MPI,
    "host_discovery_script": _ELASTIC, "min_num_proc": _ELASTIC, "max_num_proc": _ELASTIC,
    "slots_per_host": _ELASTIC, "elastic_timeout": _ELASTIC, "reset_limit": _ELASTIC,
    "blacklist_cooldown_range": _ELASTIC, "config_file": "only horovodrun reads this file, and each of its settings "
    "has an option", "version": _NO_SCRIPT, "check_build": _NO_SCRIPT, "help": _NO_SCRIPT,
}  # fmt: skip
_LOCAL = ("localhost", "127.0.0.1")

_WITHOUT_VALUE = {"disable_cache", "verbose", "prefix_output_with_timestamp", "mpi", "jsrun", "version", "check_build"}
FLAGS = (*_FLAGS, *_WITHOUT_VALUE, "help", *(name for name in _SYNONYMS if _SYNONYMS[name] in _FLAGS))
VALUES = (
    *(NUM_PROC, *_VALUES, "network_interfaces", *(name for name in _SYNONYMS if _SYNONYMS[name] not in _FLAGS)),
    *(name for name in (*_PASSED, *_REFUSED) if name not in {*_WITHOUT_VALUE, "help"}),
)


def notes(given: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each option that has no effect here. Raises LaunchRefused for one that would matter."""
    for written, value in given.items():
        name, option = _SYNONYMS.get(written, written), option_of(written)
        if name == NUM_PROC and not re.fullmatch(r"0*[1-9]\d*", value):
            raise LaunchRefused(f"{option} {value}: a whole number of at least 1 is expected")
        if name in _REFUSED:
            raise LaunchRefused(f"{option} can't be obeyed, since {_REFUSED[name]}: leave it out")
        if name == "hosts" and any(host.strip().rpartition(":")[0] not in _LOCAL for host in value.split(",")):
            raise LaunchRefused(f"{option}={value} can't be obeyed, since {_HOSTS}: leave it out")
        if name in _PASSED:
            yield f"{option} has no effect: {_PASSED[name]}"
        elif (name.startswith("autotune_") and "autotune" not in given) or name == "no_autotune":
            yield f"{option} has no effect: Horovod does not tune itself without --autotune"
        elif name.endswith("timeline_mark_cycles") and not given.get("timeline_filename"):
            yield f"{option} has no effect: there is no timeline without --timeline-filename"


def variables(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that horovodrun makes of its options. Raises LaunchRefused for a wrong value."""
    made: dict[str, str] = {}
    for written, value in given.items():
        name = _SYNONYMS.get(written, written)
        if name in _VALUES:
            variable, write, right = _VALUES[name]
            made[variable] = write(value)
            if not made[variable]:
                raise LaunchRefused(f"{option_of(written)}={value}: {right}")
        elif name == "network_interfaces":
            # gloo takes one interface, and NCCL may take each of them.
            made |= {"HOROVOD_GLOO_IFACE": value.split(",")[0], "NCCL_SOCKET_IFNAME": value}
        for variable, text in _FLAGS.get(name, {}).items():
            if made.setdefault(variable, text) != text:
                raise LaunchRefused(f"{option_of(written)} is given with its opposite: leave one of the two out")
    if "autotune" not in given:
        made = {name: value for name, value in made.items() if not name.startswith("HOROVOD_AUTOTUNE")}
    if "timeline_filename" not in given:
        made.pop("HOROVOD_TIMELINE_MARK_CYCLES", None)
    return made


def option_of(name: str) -> str:
    """Return an option with its launcher, as a person writes it."""
    return f"horovodrun {'-np' if name == NUM_PROC else '--' + name.replace('_', '-')}"
