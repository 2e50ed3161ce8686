"""PyTorch: torchrun's variables. DDP, FSDP and all that is built on torch.distributed meet at the agent's store."""

from __future__ import annotations

import gc
import os
import sys
import time
from typing import Any

from trainmaster.agent.frameworks.deepspeed_engine import count_engine_steps
from trainmaster.agent.frameworks.deepspeed_shared_memory import remove_opened_files
from trainmaster.agent.frameworks.extension_lock import watch_extension_lock
from trainmaster.agent.frameworks.framework import Facts, Framework, Hook, Meeting, Profiler

FAMILY = "torch.distributed"
HOOKS: dict[str, Hook] = {
    "torch.utils.file_baton": watch_extension_lock,
    "deepspeed.comm.torch": remove_opened_files,
    "deepspeed.runtime.engine": count_engine_steps,
}
"""The hooks of all frameworks that train with torch."""


def _meets_by_environment(args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    """Return True if `init_process_group(backend, init_method, timeout, world_size, rank, store, …)` uses the
    environment."""
    method = args[1] if len(args) > 1 else given.get("init_method")
    store = args[5] if len(args) > 5 else given.get("store")
    return method in (None, "env://") and store is None


MEETING = {"torch.distributed.distributed_c10d": Meeting("init_process_group", _meets_by_environment)}


def environment(facts: Facts) -> dict[str, str]:
    """Return the variables that torchrun sets in addition to the numbers of a rank."""
    return {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(facts.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(2**31 - 1),
        "TORCHELASTIC_RUN_ID": facts.job_uid,
    }


def _start_profiler(folder: str) -> Any:
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # it tells people of each thing that it can't do here
    torch: Any = sys.modules["torch"]
    if _is_profiled(torch):
        raise RuntimeError("the script uses the profiler itself")
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_initialized():
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    profile = torch.profiler.profile(activities=kinds)
    profile.start()
    return profile


def _stop_profiler(profile: Any, folder: str) -> None:
    profile.stop()
    # TensorBoard's plugin for torch takes the number for a time in nanoseconds.
    profile.export_chrome_trace(os.path.join(folder, f"{time.time_ns()}.pt.trace.json.gz"))


def _name_step(step: int) -> Any:
    return sys.modules["torch"].profiler.record_function(f"ProfilerStep#{step}")


def _is_profiled(torch: Any) -> bool:
    """Return True if a profiler of the script records or warms up. torch would cancel it without a word, and crash when
    it writes its trace."""
    if torch.autograd._profiler_enabled():
        return True
    kind = torch.autograd.profiler.profile
    known = [thing for thing in gc.get_objects() if type(thing) is kind]
    return any(one.entered and one.kineto_results is None for one in known)


PROFILER = Profiler(
    "torch", _start_profiler, _stop_profiler, _name_step, {"torch.autograd.profiler": "profile._prepare_trace"}
)

# A script that runs under torchrun may do without torch, so no package is asked for.
PYTORCH = Framework("PyTorch", (), environment, family=FAMILY, meeting=MEETING, hooks=HOOKS, profiler=PROFILER)
