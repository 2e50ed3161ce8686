"""Kernels that compute the same bits each time (`training.deterministic`).

On a GPU, some of torch's kernels add numbers in the order in which threads finish. Only without these kernels does a
run that is killed and resumed have the same losses as an undisturbed run, bit by bit.
"""

from __future__ import annotations

import os

import torch

from trainmaster.contract.config import TrainingConfig
from trainmaster.contract.wire import environment

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_FIXED = ":4096:8"  # cuBLAS: 8 buffers of 4096 KiB for each stream; with others it may choose other algorithms


def enforce(config: TrainingConfig) -> None:
    """Let torch compute with deterministic kernels alone, if the job wants it or its states are compared on a GPU.

    Call it before CUDA starts: cuBLAS reads its environment once. From then on torch raises RuntimeError for an
    operation that has no such kernel.
    """
    compared = os.environ.get(environment.DIGESTS) == "1" and torch.cuda.is_available()
    if not (config.deterministic or compared):
        return
    os.environ.setdefault(CUBLAS_WORKSPACE, _FIXED)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
