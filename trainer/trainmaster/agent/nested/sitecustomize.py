"""Takes the place of launchers that a rank's own program starts, and then runs the next `sitecustomize`.

The agent puts this folder in front of the PYTHONPATH of ranks that run scripts, so every Python interpreter below a
rank imports this file when it starts. It must never keep a program from running.
"""

import importlib
import os
import sys


def _install() -> None:
    if sys.version_info < (3, 8) or "RANK" not in os.environ or "TRAINMASTER_ROUND" not in os.environ:
        return
    try:
        importlib.import_module("trainmaster_nested_launch").install()
    except Exception:  # noqa: BLE001  an interpreter for which it isn't made: the program runs as it would without us
        return


def _run_next() -> None:
    """Import the `sitecustomize` that this one stands in front of, if there is one."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != folder]
    this = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ImportError as error:
        sys.modules[__name__] = this
        if error.name != __name__:
            raise


_install()
_run_next()
