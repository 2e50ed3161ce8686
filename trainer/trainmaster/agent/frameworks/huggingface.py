"""HuggingFace: Trainer, Accelerate, TRL and PEFT train with torch.distributed, so ranks get torchrun's variables."""

from __future__ import annotations

from trainmaster.agent.frameworks.framework import Framework
from trainmaster.agent.frameworks.pytorch import FAMILY, PROFILER, environment

HUGGINGFACE = Framework("HuggingFace", ("transformers", "accelerate"), environment, family=FAMILY, profiler=PROFILER)
