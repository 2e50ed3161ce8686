"""What the programme needs of the Python that runs it. Standard library only: torch may be missing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("torch", "numpy", "pydantic")
"""What the trainer imports."""
OURS = (str(ROOT / "operator"), str(ROOT / "trainer"), str(ROOT))
"""Where our own packages are."""
OLDEST = (3, 11)


def search_path(environ: Mapping[str, str]) -> str:
    """PYTHONPATH for processes that import the trainer and the benchmarks."""
    given = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in OURS]
    return os.pathsep.join([*OURS, *given])


def prepare() -> None:
    """Make the trainer importable here and in processes that this one starts, and leave CUDA untouched on import."""
    sys.path[:0] = [path for path in OURS if path not in sys.path]
    os.environ["PYTHONPATH"] = search_path(os.environ)
    # The default check of torch.cuda.is_available calls cuInit, after which forks of this process have no CUDA.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy alone would start a thread, which no fork has


def lacking(
    is_there: Callable[[str], bool] = lambda name: find_spec(name) is not None,
    version: tuple[int, int] = sys.version_info[:2],
) -> str:
    """What this Python lacks, in a sentence that says what would do; "" if it has all."""
    if version < OLDEST:
        return (
            f"{sys.executable} is Python {version[0]}.{version[1]}, and the trainer needs {OLDEST[0]}.{OLDEST[1]} or "
            f"newer; PYTHON=python3.12 would name another one"
        )
    missing = [name for name in NEEDED if not is_there(name)]
    if not missing:
        return ""
    return (
        f"{sys.executable} has no {' and no '.join(missing)}, which the trainer imports; `make venv` sets up a Python "
        f"that has everything, and docs/gpu.md says what to do on a machine without a network"
    )
