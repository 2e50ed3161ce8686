"""The packages that an interpreter must have to run the scripts of a framework, and the refusal if it has none."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

PACKAGES = {
    "TensorFlow": "tensorflow",
    "JAX": "jax",
    "DeepSpeed": "deepspeed",
    "Horovod": "horovod",
    "XGBoost": "xgboost",
}
"""The package that an interpreter must have to run a framework's scripts; torch for all others."""


def missing(framework: str, packages: Sequence[str]) -> str:
    """Return that this interpreter has none of the packages of a framework; "" if it has one, or if there are none."""
    if not packages or any(map(_is_installed, packages)):
        return ""
    names = " nor ".join(packages)
    return (
        f"framework {framework}: {'neither ' if len(packages) > 1 else ''}{names} is "
        f"{'' if len(packages) > 1 else 'not '}installed for {sys.executable}: use an image that has it, or set "
        f"spec.framework to what the script trains with"
    )


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
