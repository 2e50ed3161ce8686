"""Hugging Face's Trainer and Accelerate: torch's rendezvous, and a Trainer that goes on after a failure."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from trainmaster.agent.frameworks.framework import Facts, Framework, Watch
from trainmaster.agent.frameworks.pytorch import FAMILY, HOOKS, PROFILER, environment


def defaults(facts: Facts) -> dict[str, str]:
    """Return that ranks use the CPU if the pod has no device. Otherwise Accelerate would let each train alone."""
    return {} if facts.has_accelerator or facts.world_size == 1 else {"ACCELERATE_USE_CPU": "true"}


def _watch_trainer(module: Any, watch: Watch) -> None:
    """Let a Trainer go on from its newest whole checkpoint. A trial of a search begins anew."""
    original = module.Trainer.train

    @functools.wraps(original)
    def train(trainer: Any, resume_from_checkpoint: Any = None, trial: Any = None, *args: Any, **given: Any) -> Any:
        if trial is None and getattr(trainer, "hp_search_backend", None) is None:
            # Imported where it is needed: ranks and agents of all frameworks import this file.
            checkpoints = importlib.import_module("trainmaster.agent.frameworks.trainer_checkpoints")
            resume_from_checkpoint = checkpoints.of_trainer(trainer, resume_from_checkpoint)
        return original(trainer, resume_from_checkpoint, trial, *args, **given)

    module.Trainer.train = train


HUGGINGFACE = Framework(
    "HuggingFace",
    ("transformers", "accelerate"),
    environment,
    defaults,
    family=FAMILY,
    profiler=PROFILER,
    hooks={**HOOKS, "transformers.trainer": _watch_trainer},
)
