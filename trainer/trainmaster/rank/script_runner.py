"""Runs an entry as `python …` would, and watches it from outside: last words, steps, imported modules.

An entry is one of
    {"kind": "function", "target": "package.module:function"}
    {"kind": "script", "path": "train.py", "args": [...]}      python train.py …  (a folder or a zip file, too)
    {"kind": "module", "name": "package.module", "args": [...]} python -m package.module …
    {"kind": "code", "code": "import …", "args": [...]}         python -c 'import …' …
Used by forks of the zygote and by the launcher of executed ranks alike.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import io
import os
import pkgutil
import runpy
import subprocess
import sys
import traceback
import types
from typing import Any

from trainmaster.contract.launch.python_options import program_of
from trainmaster.contract.wire.causes_and_exit_codes import Cause, ExitCode
from trainmaster.contract.wire.progress_record import OtherRecord
from trainmaster.host import processes
from trainmaster.host.failure_signatures import cause_of, code_of, is_cascade
from trainmaster.rank import failure_message, open_process_groups, rendezvous, script_observer
from trainmaster.rank.user_traceback import user_frames, user_traceback


def run(entry: dict[str, Any]) -> int:
    """Run `entry` to its end, and return its exit code. An exception is first printed and reported to the agent."""
    own_loop = entry["kind"] == "function"
    if "RANK" in os.environ:
        processes.set_name(f"rank {os.environ['RANK']} {_program(entry)}")
    open_process_groups.install()
    try:
        script_observer.install(own_loop=own_loop)
        script_observer.join()
        rendezvous.install(own_loop=own_loop)
        _enter(entry)
    except SystemExit as stop:
        code = exit_code(stop)
        if code:
            failure_message.tell_exit(code)
        else:
            open_process_groups.note_end()
        return code
    except KeyboardInterrupt:
        traceback.print_exc()
        return 130
    except OtherRecord as error:  # this trainmaster is of another version than the agent's: its image has its own
        return failure_message.refuse(str(error))
    except BaseException as error:  # noqa: BLE001  these are the last words: told, then the process ends with 1
        return _last_words(error)
    open_process_groups.note_end()
    return 0


def _program(entry: dict[str, Any]) -> str:
    """Return what an entry runs, as short as a person calls it."""
    if entry["kind"] == "script":
        return os.path.basename(os.path.abspath(str(entry["path"])))
    return str(entry["name"]) if entry["kind"] == "module" else "python" if entry["kind"] == "code" else "trainmaster"


def exit_code(stop: SystemExit) -> int:
    """Return the exit code that the interpreter uses for this exception. A message is printed as the interpreter
    does."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


INJECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "injected")
"""The folder in front of the PYTHONPATH of executed ranks. It is in no program's `sys.path`."""


def set_path(first: str) -> None:
    """Set `sys.path` as in a new interpreter: `first`, PYTHONPATH, and then what was there without either."""
    given = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    base = [p for p in sys.path if p and p not in given and p not in _launch_extras]
    sys.path[:] = [first, *(p for p in given if p != INJECTED), *base]


def customize() -> None:
    """Import the `sitecustomize` of PYTHONPATH in this fork, as an interpreter does when it starts.

    One that the zygote imported at its start is there already. As in an interpreter, one that fails is reported, and
    the program runs nevertheless.
    """
    given = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    given = [p for p in given if p != INJECTED]
    spec = importlib.machinery.PathFinder.find_spec(_CUSTOMIZATION, given) if given else None
    known = sys.modules.get(_CUSTOMIZATION)
    if spec is None or (known is not None and getattr(known, "__file__", None) == spec.origin):
        return
    sys.modules.pop(_CUSTOMIZATION, None)
    before = sys.path[:]
    sys.path[:0] = given
    try:
        importlib.import_module(_CUSTOMIZATION)
    except Exception as error:  # noqa: BLE001  whatever it raises, the program doesn't fail for it
        print(f"Error in {_CUSTOMIZATION}: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.path[:] = before


_CUSTOMIZATION = "sitecustomize"

_launch_extras: set[str] = set()
"""Entries of `sys.path` that come from the start of the zygote itself."""


def forget_launch_path() -> None:
    """Note what the zygote's own start has put on `sys.path`, so that ranks do not get it. The zygote calls it once."""
    given = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    _launch_extras.update([os.getcwd(), *given])


def _enter(entry: dict[str, Any]) -> None:
    kind = entry["kind"]
    if kind == "function":
        module, _, name = entry["target"].partition(":")
        sys.argv = [module]
        set_path(os.getcwd())
        getattr(importlib.import_module(module), name)()
        return
    # The command by which a person starts the entry: a program may start itself again with it.
    sys.orig_argv = program_of(sys.executable, entry, subprocess._args_from_interpreter_flags())  # type: ignore[attr-defined]
    if kind == "module":
        sys.argv = [entry["name"], *entry["args"]]
        set_path(os.getcwd())
        new_main()
        runpy._run_module_as_main(entry["name"])  # type: ignore[attr-defined]
    elif kind == "code":
        sys.argv = ["-c", *entry["args"]]
        set_path("")
        _run_main(compile(entry["code"], "<string>", "exec"))
    else:
        _run_file(entry["path"], entry["args"])


def _run_file(path: str, args: list[str]) -> None:
    sys.argv = [path, *args]
    if not os.path.exists(path):
        print(f"{sys.executable}: can't open file {os.path.abspath(path)!r}: no such file", file=sys.stderr)
        failure_message.tell(Cause.CONFIG_ERROR, f"the script {path} does not exist", "")
        raise SystemExit(2)
    # As the interpreter does, so that a script finds files in its folder after it has changed its directory.
    path = os.path.abspath(path)
    if pkgutil.get_importer(path) is not None:  # a folder or a zip file, which holds a __main__.py
        set_path(path)
        new_main()
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return
    set_path(os.path.dirname(os.path.realpath(path)))
    with io.open_code(path) as file:
        code = pkgutil.read_code(file)
        compiled = code is not None  # a .pyc: programs are shipped in this form, too
        if code is None:
            file.seek(0)
            code = compile(file.read(), path, "exec")
    kind: Any = importlib.machinery.SourcelessFileLoader if compiled else importlib.machinery.SourceFileLoader
    _run_main(code, __file__=path, __cached__=None, __loader__=kind("__main__", path))


def _run_main(code: types.CodeType, **names: Any) -> None:
    main = new_main()
    main.__dict__.update(names)
    exec(code, main.__dict__)


def new_main() -> types.ModuleType:
    """Put an empty `__main__` in the place of the one by which this process was started, and return it."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    return main


def _last_words(error: BaseException) -> int:
    """Show the exception, tell the agent, and return the exit code."""
    if sys.excepthook is sys.__excepthook__:
        _write(user_traceback(error))
        code = int(tell_last_words(error))
    else:  # it may take its time, or end the process
        code = int(tell_last_words(error))
        code = _call_hook(error, code)
    if "trainmaster.train.after_failure.rescue" in sys.modules:
        sys.modules["trainmaster.train.after_failure.rescue"].park()
    return code


def _call_hook(error: BaseException, code: int) -> int:
    """Let the script's own `sys.excepthook` show the exception, as the interpreter does.

    Experiment trackers learn from it that a run has failed. Return the exit code, which the hook may change by
    SystemExit.
    """
    try:
        sys.excepthook(type(error), error, user_frames(error))
    except SystemExit as stop:
        return exit_code(stop)
    except BaseException:  # noqa: BLE001  a broken hook must not hide what has failed
        _write(f"Error in sys.excepthook:\n{traceback.format_exc()}\nOriginal exception was:\n{user_traceback(error)}")
    return code


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def tell_last_words(error: BaseException, *, may_go_on: bool = False) -> ExitCode:
    """Tell the agent of the exception that ends this process; return the exit code that it means. `may_go_on`: what has
    started this process may go on without it."""
    text = user_traceback(error)
    message = "".join(traceback.format_exception_only(type(error), error)).strip()
    if isinstance(error, SyntaxError):  # whose first lines are the place, not the name
        message = f"{type(error).__name__}: {error}"
    cause, cascade = cause_of(text), is_cascade(text)
    step = script_observer.step()
    failure_message.tell(cause, message, text, cascade=cascade, step=step, may_go_on=may_go_on)
    return code_of(cause, cascade)
