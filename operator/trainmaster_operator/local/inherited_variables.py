"""Which environment variables the pods of a local run inherit from the user's shell."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import trainmaster
from trainmaster.contract.wire import environment

_INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_.*|TZ|VIRTUAL_ENV|CONDA_PREFIX|LD_LIBRARY_PATH|LD_PRELOAD|PYTHON.*"
    r"|CUDA_.*|NVIDIA_.*|NCCL_.*|GLOO_.*|TORCH.*|PYTORCH_.*|OMP_.*|MKL_.*|HF_.*|XDG_.*|SSL_.*|.*_proxy|.*_PROXY"
)


def base_environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that every process of a local run gets: enough to find programs, modules and devices, and
    nothing about the store.

    Programs in the directory of the interpreter that runs scripts (python, torchrun) come first, even if its
    environment is not activated. This is the interpreter of this process, or the user's own if `environment.PYTHON`
    names it.
    """
    variables = {name: value for name, value in own.items() if _INHERITED.fullmatch(name)}
    here = os.path.dirname(sys.executable)
    path = [here, variables.get("PATH", os.defpath)]
    if own.get(environment.PYTHON):
        variables[environment.PYTHON] = own[environment.PYTHON]
        path = [os.path.dirname(own[environment.PYTHON]), *reversed(path)]
    variables["PATH"] = os.pathsep.join(path)
    root = str(Path(trainmaster.__file__).resolve().parents[1])
    if Path(root).name not in ("site-packages", "dist-packages"):
        paths = [p for p in variables.get("PYTHONPATH", "").split(os.pathsep) if p and p != root]
        variables["PYTHONPATH"] = os.pathsep.join([*paths, root])
    return variables
