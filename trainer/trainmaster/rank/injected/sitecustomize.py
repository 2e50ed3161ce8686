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
    """Let launchers become the script that they would start, in every process below a rank."""
    if sys.version_info < (3, 8) or "RANK" not in os.environ or "TRAINMASTER_ROUND" not in os.environ:
        return
    try:
        importlib.import_module("trainmaster_nested_launch").install()
    except Exception:  # noqa: BLE001  an interpreter for which it isn't made: the program runs as it would without us
        return


def _watch() -> None:
    """Watch this process if it is the rank's program."""
    if sys.version_info < (3, 9) or "TRAINMASTER_ENTRY" in os.environ:
        return  # an entry is watched by what runs it
    if _inherits_record():
        _begin_watching()
    elif _find_record():
        sys.meta_path.insert(0, _AtFramework())


class _AtFramework:
    """Observes a process without the rank's record as soon as it imports torch, or the framework of the job.

    Such a process trains; it is not a helper of the rank's program.
    """

    names = ("torch", os.environ.get("TRAINMASTER_FRAMEWORK", "").lower())
    waits = True

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name in self.names and self.waits:
            self.waits = False
            if _open_record():
                _begin_watching()


def _begin_watching() -> None:
    """Install the observer. The package is in a folder above; `sys.path` is not changed."""
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
    sys.path.append(root)
    try:
        from trainmaster.rank import executed_rank_observation

        executed_rank_observation.watch()
    except Exception:  # noqa: BLE001  an interpreter for which the package isn't made: the program runs unwatched
        return
    finally:
        sys.path.remove(root)


def _inherits_record() -> bool:
    """Return True if the rank's record was inherited. Child processes of Python programs do not inherit it."""
    try:
        return os.readlink("/proc/self/fd/" + os.environ["TRAINMASTER_PROGRESS_FD"]).startswith(
            "/memfd:trainmaster-progress"
        )
    except (KeyError, OSError):
        return False


def _open_record() -> bool:
    """Open the rank's record where a program above this one has it, and claim it as `executed_rank_observation` does.

    `conda run` and all that starts programs by Python's `subprocess` close what they have inherited. The channel can't
    be opened in this way, so the agent finds this program's last words in its output. False: there is no record, or
    another program claims it, which this one is a worker of.
    """
    path = _find_record()
    if not path:
        return False
    import fcntl

    # A stack is written behind the record. The agent sets the place of its own open file, not of this one.
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return False
    os.environ["TRAINMASTER_PROGRESS_FD"] = str(fd)
    os.environ.pop("TRAINMASTER_CHANNEL_FD", None)
    return True


def _find_record() -> str:
    """Return the path of the rank's record in the nearest process above this one that has it, "" if none has."""
    try:
        number = os.environ["TRAINMASTER_PROGRESS_FD"]
        name = "/memfd:trainmaster-progress-{TRAINMASTER_ROUND}-{RANK} (deleted)".format_map(os.environ)
        pid = os.getppid()
        while pid > 1:
            path = f"/proc/{pid}/fd/{number}"
            if os.path.islink(path) and os.readlink(path) == name:
                return path
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(") ")[2].split()[1])
    except (KeyError, OSError):
        pass
    return ""


def _run_next() -> None:
    """Import the `sitecustomize` that this one hides, if there is one."""
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
