"""From a forked copy of the zygote to a process that looks as if it had been started.

`become` runs in the child: own session, no tie to the server, the rank's environment, descriptors, directory,
thread counts and random seeds. `run` then runs the entry and ends the process.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import io
import os
import signal
import stat
import sys
import threading
import time
import traceback
from typing import Any

from trainmaster.agent.zygote import modules_that_read_the_rank, preload
from trainmaster.agent.zygote.fork_server import MARK, Birth
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.causes_and_exit_codes import Cause, ExitCode
from trainmaster.host import pinning, processes
from trainmaster.rank import (
    executed_rank,
    executed_rank_observation,
    failure_message,
    framework_joining,
    program_replacement,
    script_runner,
)
from trainmaster.rank.injected import trainmaster_nested_launch

set_by_imports: dict[str, str | None] = {}
"""Variables that the imports of a learned zygote have set, or deleted (None), as they do in a rank."""

_FIRST_FD = 64  # above what programs expect to be free, so that nothing of theirs collides with it


def become(birth: Birth, *, execute: bool) -> None:
    """Turn this fork into the process that `birth.request` describes; `execute`: descriptors survive an exec."""
    os.setsid()
    processes.die_with_parent(birth.parent)
    processes.relax()
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL if execute else signal.SIG_IGN)
    request = birth.request
    env = dict(request["env"])
    env[MARK] = request["mark"]
    command = fcntl.F_DUPFD if execute else fcntl.F_DUPFD_CLOEXEC
    for name, fd in zip(request["fds"], birth.fds, strict=True):
        if name == "output":
            os.dup2(fd, 1)
            os.dup2(fd, 2)
        elif name in ("progress", "channel"):
            env[environment.PROGRESS_FD if name == "progress" else environment.CHANNEL_FD] = str(
                fcntl.fcntl(fd, command, _FIRST_FD)
            )
        os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.environ.clear()
    os.environ.update(env)
    _set(set_by_imports)
    pinning.pin(env)
    os.chdir(request["cwd"])


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def execute(argv: list[str]) -> None:
    """Replace this process by a program. Does not return: a program that can't be run is told and ends with 127."""
    if executed_rank.ENTRY not in os.environ:
        _join()
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        text = f"{argv[0]}: {error.strerror}"
        os.write(2, f"{text}\n".encode())
        failure_message.tell(Cause.CONFIG_ERROR, text, "")
        os._exit(127)


def _join() -> None:
    """Let this rank meet the others before its program begins, as far as its framework needs that.

    A shell script may let other ranks wait until rank 0 has downloaded something. So its first Python process, which
    would meet the others as well, may come at different times in each rank, or never in one that waits.
    """
    try:
        framework = framework_joining.of_this_rank()
        if framework is not None:
            framework_joining.join(framework)
    except Exception as error:  # noqa: BLE001  these are the last words: told, then the process ends
        traceback.print_exc()
        os._exit(script_runner.tell_last_words(error))


def run(entry: dict[str, Any]) -> None:
    """Run a Python entry in this fork as if it had been started. Does not return."""
    _refresh(os.environ)
    _customize_as_injected()
    script_runner.customize()
    program_replacement.install()
    code = script_runner.run(entry)
    _leave(code)


def _customize_as_injected() -> None:
    """Do in this fork what the injected `sitecustomize` does in an interpreter that starts.

    A fork of a script runs it from its beginning, so it may launch the ranks itself. Python processes below it get the
    `sitecustomize`, and the record is claimed so that none of them takes itself for the rank.
    """
    if script_runner.INJECTED in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        trainmaster_nested_launch.install()
        executed_rank_observation.claim()


def _refresh(env: Any) -> None:
    """Read again what a process reads from its environment at its start, and reseed what must differ between forks."""
    for name in preload.GENERATORS:
        if name in sys.modules and name not in preload.seeded:
            sys.modules[name].seed()
    if "random" in preload.seeded:
        sys.modules["random"].setstate(preload.state_of_random)
    threads = env.get("OMP_NUM_THREADS", "").split(",")[0]
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(int(threads) if threads.isdigit() else processes.available_cpus())
        if preload.has_drawn_seed_of_torch():
            torch.default_generator.seed()
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    _forget_zygotes_places()
    modules_that_read_the_rank.read_again(sys.modules)
    # A rank that is killed loses what its buffers hold; its last line is worth more than the speed of a print.
    for stream, fd in (("stdout", 1), ("stderr", 2)):
        setattr(sys, stream, open(fd, "w", 1, "utf-8", "backslashreplace", closefd=False))  # noqa: SIM115
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc, assignment]
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    script_runner.new_main()


def _forget_zygotes_places() -> None:
    """Reset what modules of the standard library have kept from the start of the zygote, such as its folder."""
    time.tzset()
    try:
        place = os.getcwd()
    except OSError:  # the folder was removed, which need not trouble the program
        place = None
    # The folder for temporary files is found again, by TMPDIR. Processes that are spawned look for modules from theirs.
    for module, name, value in (
        ("tempfile", "tempdir", None),
        ("multiprocessing.process", "ORIGINAL_DIR", place),
    ):
        if module in sys.modules:
            setattr(sys.modules[module], name, value)


def _leave(code: int) -> None:
    """End as the interpreter does, but without tearing modules down: the zygote's frozen objects stay."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001  an exit hook must not keep a rank alive
        traceback.print_exc()
        code = code or ExitCode.CRASH
    _write_out_open_files()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _write_out_open_files() -> None:
    """Write out what files that the program has left open still hold, as the interpreter does when it ends.

    Files that the zygote had open are frozen, so the collector does not know them. What is no regular file is left out:
    a program that does not read its pipe must not keep a rank alive.
    """
    kind = io.IOBase.__bases__[0]  # without the look for subclasses of an abstract class, for every object
    objects = gc.get_objects()
    _finish_archives(objects)
    files: list[Any] = [thing for thing in objects if issubclass(type(thing), kind)]
    # From the outside to the inside: a text file passes on what it holds to its buffer, a compressed file to another.
    for file in sorted(files, key=_depth):
        with contextlib.suppress(Exception):  # it has no descriptor, or its disk is full
            if not file.closed and file.writable() and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                file.close() if _is_compressed(file) else file.flush()


def _finish_archives(objects: list[Any]) -> None:
    """Write the table of contents, without which nothing can read them, of ZIP archives that were left open."""
    zipfile = sys.modules.get("zipfile")
    if zipfile is None:
        return
    for archive in [thing for thing in objects if issubclass(type(thing), zipfile.ZipFile)]:
        with contextlib.suppress(Exception):  # as above
            if archive.mode != "r" and stat.S_ISREG(os.fstat(archive.fp.fileno()).st_mode):
                archive.close()


def _depth(file: Any) -> int:
    return 0 if isinstance(file, io.TextIOBase) else 1 if _is_compressed(file) else 2


def _is_compressed(file: Any) -> bool:
    """Return True if a file is one of gzip, bz2 or lzma, or of a class made from theirs: it is whole only after its end
    was written."""
    return any(kind.__name__ in ("GzipFile", "BZ2File", "LZMAFile") for kind in type(file).__mro__)
