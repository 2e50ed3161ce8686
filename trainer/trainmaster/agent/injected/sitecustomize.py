"""Takes the place of launchers in a rank's program, watches it if it was executed as it is, and then runs the next
`sitecustomize`.

The agent puts this folder in front of PYTHONPATH, so every Python interpreter below the rank imports this file when it
starts: whichever interpreter it is, and whatever started it. It must never keep a program from running: where watching
isn't possible, it is left out.
"""

import importlib
import os
import sys


def _take_over_launchers() -> None:
    """Have launchers become the script that they would start, in whatever process below a rank."""
    if sys.version_info < (3, 8) or "RANK" not in os.environ or "TRAINMASTER_ROUND" not in os.environ:
        return
    try:
        importlib.import_module("trainmaster_nested_launch").install()
    except Exception:  # noqa: BLE001  an interpreter for which it isn't made: the program runs as it would without us
        return


def _watch() -> None:
    """Watch this process if it is the rank's program. The package lies above; `sys.path` stays as it was."""
    if sys.version_info < (3, 9) or not _is_below_rank() or "TRAINMASTER_ENTRY" in os.environ:
        return  # an entry is watched by what runs it
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
    sys.path.append(root)
    try:
        from trainmaster.agent import injection

        injection.watch()
    except Exception:  # noqa: BLE001  an interpreter for which the package isn't made: the program runs unwatched
        return
    finally:
        sys.path.remove(root)


def _is_below_rank() -> bool:
    """Whether the rank's record is inherited. Workers and other children of Python programs don't inherit it."""
    try:
        return os.readlink("/proc/self/fd/" + os.environ["TRAINMASTER_PROGRESS_FD"]).startswith(
            "/memfd:trainmaster-progress"
        )
    except (KeyError, OSError):
        return False


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


_take_over_launchers()
_watch()
_run_next()
