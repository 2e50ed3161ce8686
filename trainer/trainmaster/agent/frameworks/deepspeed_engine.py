"""The steps of DeepSpeed's engine, in a job of any framework that trains with torch.

With ZeRO, one step of the engine calls torch's optimizer once for each group of parameters, and in stage 3 once for
each sub-group of them.
"""

from __future__ import annotations

import functools
from typing import Any

from trainmaster.agent.frameworks.framework import Watch


def count_engine_steps(module: Any, watch: Watch) -> None:
    """Let each step of an engine of `deepspeed.runtime.engine` at a boundary of gradient accumulation be one step."""
    # `step` calls it at a boundary alone, and so does the pipeline's engine, which has no `step`.
    original = getattr(module.DeepSpeedEngine, "_take_model_step", None)
    if original is None:
        return

    @functools.wraps(original)
    def take_model_step(engine: Any, *args: Any, **given: Any) -> Any:
        with watch.one_step(engine, _taken):
            return original(engine, *args, **given)

    module.DeepSpeedEngine._take_model_step = take_model_step


def _taken(engine: Any) -> int:
    """Return the steps of an engine, those before this process included if it was restored. It counts a step that it
    skips because gradients of half precision overflow, too."""
    return int(engine.global_steps)
