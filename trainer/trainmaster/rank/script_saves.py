"""The functions by which a script saves and loads, and which files are saves of its job.

A script that loads one before its first step resumes; one that loads pretrained weights begins anew.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from trainmaster.contract.wire import environment

_COARSE_S = 1.0  # by which a file may seem older than it is: file systems round their times


def may_be_a_save(file: Any) -> bool:
    """Return True if a file may be one that this job has saved in its training: it is not older than the first step.

    It is also True if that is not known: for a buffer, or if the time of the first step is not known.
    """
    try:
        first_step_at = float(os.environ.get(environment.FIRST_STEP_AT, ""))
        written_at = os.stat(file if isinstance(file, (str, bytes, os.PathLike)) else file.fileno()).st_mtime
    except (AttributeError, ValueError):  # what has no descriptor says so by io.UnsupportedOperation, a ValueError
        return True
    except OSError:
        return False  # there is no such file
    except Exception:  # noqa: BLE001  or by an error of its own, which must not fail the script
        return True
    return written_at > first_step_at - _COARSE_S


def put_in_place(module: Any, name: str, function: Any) -> None:
    """Replace a function of a module, and in the package above it too, if that has imported the function."""
    original = getattr(module, name)
    setattr(module, name, function)
    package = sys.modules.get(module.__name__.rpartition(".")[0])
    if package is not None and getattr(package, name, None) is original:
        setattr(package, name, function)
