"""torch.compile, block by block: what is compiled for the first block serves all blocks of the same kind.

Only a block's forward is compiled, not its call: hooks, which sharding and other strategies use, run outside of the
compiled code. As in torchtitan, this comes after recomputation and before sharding.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from trainmaster.errors import ConfigError
from trainmaster.parallel.model_plan import replace_forwards

CACHE = "TORCHINDUCTOR_CACHE_DIR"


def prepare(device_type: str) -> None:
    """Prepare this process for compilation. Raises ConfigError if this machine cannot compile.

    Compiled code is cached in torch's own folder, in the container. It is not cached with the checkpoints, because
    others may write to that folder, and code from it could not be trusted.
    """
    check(device_type)
    import torch._inductor.config as inductor

    # No kernel is chosen by a measurement of its speed: a restarted rank could choose another one, whose results differ
    # in the last digits.
    inductor.deterministic = True
    if device_type == "cpu" and "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        # Blocks have one graph each way, and C++ is compiled in processes anyway. Workers would import torch first.
        inductor.compile_threads = 1


def check(device_type: str) -> None:
    """Raise ConfigError, with a sentence, if this machine lacks something that torch.compile needs."""
    missing = lacks(device_type)
    if missing:
        raise ConfigError(
            f"training.compile: torch.compile needs {missing} in this image; use an image that has it, or leave "
            f"compile out"
        )


def lacks(device_type: str) -> str:
    """Return what torch.compile needs and this machine lacks, or "" if nothing is missing."""
    compiler = os.environ.get("CXX", "g++") if device_type == "cpu" else os.environ.get("CC", "gcc")
    if shutil.which(compiler) is None:
        return f"a C++ compiler, and there is no {compiler}"
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").exists():
        return f"Python's headers, and {headers} has no Python.h"
    if device_type == "cuda" and find_spec("triton") is None:
        return "Triton, and there is no Python package triton"
    return ""


def apply(blocks: Iterable[nn.Module], precision: str = "fp32") -> None:
    """Compile the forward of each block when it is first called, once for each shape of its inputs.

    precision: what the blocks compute in (`training.precision`).
    """
    if precision == "fp8":
        import torch._dynamo.config as dynamo

        # 8-bit products enter a TorchFunctionMode inside of what is recomputed. For Dynamo that is a side effect, and a
        # block with one would be left as it is. It need not happen again in the backward pass: the graph that is
        # recomputed there was captured with the mode on.
        dynamo.skip_fwd_side_effects_in_bwd_under_checkpoint = True
    # Blocks of the same kind get one class; otherwise none of them could use what is compiled for another one.
    replace_forwards(blocks, lambda forward: torch.compile(forward, dynamic=False))
