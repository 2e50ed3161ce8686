"""Which environment variables a zygote must share with the ranks that are forked from it.

Some are read once, when the interpreter or a library is loaded: a process that was started with another value cannot
fork these ranks. The others only matter to the modules that a zygote imports in advance.
"""

from __future__ import annotations

from collections.abc import Mapping

# Differ from rank to rank or from pod to pod without any module's caring at its import. What the agent itself sets for
# each rank is not among them: `import_environment` leaves it out by the framework.
_VOLATILE = {"OMP_NUM_THREADS", "TMPDIR", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_", "PYTHONUNBUFFERED"}
# Read once, when the interpreter or torch is loaded: a fork of a zygote with another value would not have it.
_AT_LOAD = (
    *("LD_", "PYTHON", "KMP_", "OMP_", "GOMP_", "MKL_", "TORCH_", "PYTORCH_", "GLIBC_", "MALLOC_"),
    *("TORCHDYNAMO_", "TORCHINDUCTOR_"),  # by torch's compiler, which zygotes import in advance
)
_KMP = "KMP_"
"""Prefix of the variables of Intel's and LLVM's OpenMP. accelerate sets some on CPUs, also where torch has GNU's
OpenMP."""


def without_volatile(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ranks that a module may care about at its import."""
    return {n: v for n, v in environ.items() if n not in _VOLATILE and not n.startswith("TRAINMASTER_")}


def load_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are read once, at load: a zygote must have been started with the same."""
    # The last one is read at each use, and often differs: a folder that outlives the job.
    skipped = {*_VOLATILE, "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "TORCHINDUCTOR_CACHE_DIR"}
    return {n: v for n, v in environ.items() if n.startswith(_AT_LOAD) and n not in skipped}


def differing(ours: Mapping[str, str], theirs: Mapping[str, str], *, reads_kmp: bool) -> list[str]:
    """Return the variables in which ranks (`theirs`) differ from a zygote. Both are a `load_environment`.

    `reads_kmp`: the zygote has loaded an OpenMP that reads KMP_ variables; another one ignores them.
    """
    unread = () if reads_kmp else (_KMP,)
    return sorted(n for n in {*ours, *theirs} if ours.get(n) != theirs.get(n) and not n.startswith(unread))


def refusal(names: list[str]) -> str:
    """Return the sentence for the agent's log if the variables of these names differ."""
    return f"the zygote of the machine can't fork these ranks, because it was started with another {', '.join(names)}"
