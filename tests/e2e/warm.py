"""Runs of `trainmaster` without the second in which Python imports it: forked from a process that has done so.

The command, its operator, its kubelet and its agents are processes of their own as ever, with the same parents,
sessions, signals and descriptors; they are forked where they would have been executed. A test that looks at the command
line or the environment of the command, its operator or its kubelet executes the command itself, as users do. Those of
an agent are what an executed agent has, because the kubelet reads them.

Run as a program this is that process: it takes requests from the descriptor in argv, and forks what argv names.
"""

from __future__ import annotations

import asyncio
import atexit
import codecs
import contextlib
import ctypes
import gc
import importlib
import io
import os
import random
import runpy
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from trainmaster.contract.wire.channel import Channel
from trainmaster.host import processes

COMMAND = "trainmaster_operator.cli.main"
_FORKED = (COMMAND, "trainmaster_operator.local.local_operator", "trainmaster_operator.local.process_kubelet")
_USED = (
    "trainmaster_operator.cli.run.local_run",
    "trainmaster_operator.cli.run.run_job",
    "trainmaster_operator.cli.run.prove",
    "trainmaster_operator.cli.run.run_command",
    "trainmaster_operator.planning.plan",
    "trainmaster_operator.planning.rounds.directives",
    "trainmaster.data.build_source",
    "trainmaster.models",
)
"""What they import when they need it, and each fork would import for itself."""
_AGENT = "trainmaster.agent"
_KINDS = {"command": (*_FORKED, *_USED, f"{_AGENT}.__main__"), "agent": (f"{_AGENT}.__main__",)}
"""What a process imports that forks the command, or agents alone."""
_ROOM = "TRAINMASTER_TEST_ROOM"
"""A variable that is as long as the environment of an agent may become: an agent's environment is written over it."""
STALLED_AFTER = "TRAINMASTER_TEST_STALLED_AFTER_S"
"""A variable of a run: after so many seconds an operator of it says that storage does not answer."""
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


class WarmInterpreter:
    """Starts the command, or agents alone (`kind`: "agent"), for one test process."""

    def __init__(self, kind: str = "command") -> None:
        from tests import tied  # not at the top: the program below doesn't find it

        self._channel, theirs = Channel.pair()
        fd = theirs.fileno()
        self._process = tied.popen(
            [sys.executable, __file__, str(fd), kind],
            env={**os.environ, _ROOM: 100_000 * "x"},
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> WarmRun:
        """Run `trainmaster` with these arguments. Standard output and error come together."""
        output, theirs = os.pipe()
        run = WarmRun(*self._start(COMMAND, arguments, environment, os.getcwd(), theirs), output)
        os.close(theirs)
        return run

    def start_agent(self, environment: Mapping[str, str], folder: Path, log: int) -> WarmProcess:
        """Start an agent in `folder`. `log`: the descriptor of its standard output and error."""
        return WarmProcess(*self._start(_AGENT, [], environment, str(folder), log))

    def _start(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], folder: str, output: int
    ) -> tuple[int, int]:
        """Return the pid, and the descriptor from which the exit code can be read."""
        status, ended = os.pipe()
        request = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": folder,
        }
        self._channel.send("run", request, [output, ended])
        os.close(ended)
        received = self._channel.receive()
        assert received is not None, "the process that forks the command is gone"
        return received[0]["pid"], status

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


@cache
def shared(kind: str = "command") -> WarmInterpreter:
    """The one of all tests of this process, closed when it ends."""
    interpreter = WarmInterpreter(kind)
    atexit.register(interpreter.close)
    return interpreter


class WarmProcess:
    """A process that runs: what tests use of `subprocess.Popen`, which knows only children of its own."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal. Raises TimeoutExpired."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(COMMAND, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if selector.select(timeout):
                    # Nothing is said when the process that forks is gone, and this one with it.
                    self.returncode = int(os.read(self._status, 32) or -signal.SIGKILL)
                    os.close(self._status)
        return self.returncode


class WarmRun(WarmProcess):
    """A command that runs, with what it says."""

    def __init__(self, pid: int, status: int, output: int) -> None:
        super().__init__(pid, status)
        self.stdout = open(output, encoding="utf-8", errors="replace")  # noqa: SIM115  closed with this object
        self._read = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a character

    def __enter__(self) -> WarmRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        self.stdout.close()

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """(what it says until its end, None). Raises TimeoutExpired; the next call returns what was read until then."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self.stdout, selectors.EVENT_READ)
            while True:
                left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                if not selector.select(left):
                    raise subprocess.TimeoutExpired(COMMAND, timeout or 0.0)
                chunk = os.read(self.stdout.fileno(), 1 << 16)
                self._read += self._decoder.decode(chunk, final=not chunk)
                if not chunk:
                    break
        self.wait()
        return self._read, None


def _serve(channel: Channel, kind: str) -> None:
    for name in _KINDS[kind]:
        importlib.import_module(name)
    if kind == "command":
        _fork_instead_of_executing()
    gc.collect()
    gc.freeze()
    with selectors.DefaultSelector() as selector:
        selector.register(channel.socket, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is not None:
                    selector.unregister(key.fd)
                    _report_end(key.fd, *key.data)
                    continue
                received = channel.receive()
                if received is None:
                    return
                request, (output, ended) = received
                pid = _fork(request, output)
                os.close(output)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, ended))
                channel.send("started", {"pid": pid})


def _report_end(pidfd: int, pid: int, ended: int) -> None:
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it
        os.write(ended, str(os.waitstatus_to_exitcode(status)).encode())
    os.close(ended)


def _fork(request: dict[str, Any], output: int) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        processes.die_with_parent(parent)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(request["folder"])
        _become(request["module"], request["arguments"], request["environment"])
    return pid


def _fork_instead_of_executing() -> None:
    """Have the command fork its children, too, and its kubelet the agents."""
    from trainmaster_operator.cli.run import local_processes, prove
    from trainmaster_operator.local import pod_process

    async def create_subprocess_exec(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(*command, **_forking(command, **options))

    def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, **_forking(command, **options))

    def popen_pod(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        forked = can_fork(command, options["env"])
        return subprocess.Popen(command, **(_forking(command, **options) if forked else options))

    local_processes.asyncio = _Replaced(asyncio, create_subprocess_exec=create_subprocess_exec)  # type: ignore[assignment]
    prove.subprocess = _Replaced(subprocess, Popen=popen)  # type: ignore[assignment]
    pod_process.subprocess = _Replaced(subprocess, Popen=popen_pod)  # type: ignore[assignment]


def can_fork(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a pod's command is an agent's whose interpreter reads what each local pod has: no variable of its own."""
    from trainmaster_operator.local.inherited_variables import base_environment

    is_agent = list(command) == [sys.executable, "-m", _AGENT]
    return is_agent and _for_python(environment) == _for_python(base_environment(os.environ))


def _for_python(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that an interpreter reads when it starts: no fork can have others than its parent's."""
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


class _Replaced:
    """A module with some of its names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _forking(command: Sequence[str], preexec_fn: Callable[[], None], **options: Any) -> dict[str, Any]:
    """The options of a process that is to be forked: what runs last before the program is executed runs it instead."""
    assert command[1] == "-m", command
    module, arguments = command[2], command[3:]
    assert module in (*_FORKED, _AGENT), f"{module} isn't imported before the fork"

    def run() -> None:
        preexec_fn()
        _become(module, arguments, options.get("env") or os.environ, options.get("pass_fds", ()))

    return {**options, "preexec_fn": run}


def _become(module: str, arguments: Sequence[str], environment: Mapping[str, str], keep: Sequence[int] = ()) -> None:
    """Run a module's `main` in this fork as if Python had just been started with it. Does not return."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in _ENDS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        low = 3
        for fd in sorted(keep):
            os.closerange(low, fd)
            low = fd + 1
        os.closerange(low, os.sysconf("SC_OPEN_MAX"))
        variables = dict(environment)
        os.environ.clear()
        os.environ.update(variables)
        tempfile.tempdir = None  # It is found again, by TMPDIR.
        for name, fd in (("stdout", 1), ("stderr", 2)):
            buffer = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
            stream = io.TextIOWrapper(buffer, "utf-8", "backslashreplace", line_buffering=fd == 2)
            setattr(sys, name, stream)
        sys.argv = [module, *arguments]
        for folder in variables.get("PYTHONPATH", "").split(os.pathsep):
            if folder and Path(folder, "sitecustomize.py").is_file():
                sys.path.append(folder)
                runpy.run_path(str(Path(folder, "sitecustomize.py")))
        if STALLED_AFTER in variables:
            from trainmaster_operator.planning.lifecycle import checkpoint_conditions

            checkpoint_conditions.STALLED_AFTER_S = float(variables[STALLED_AFTER])
        random.seed()
        gc.freeze()
        if module == _AGENT:
            module = f"{_AGENT}.__main__"
            sys.path[:0] = [os.getcwd(), *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
            _show([sys.executable, "-m", _AGENT], variables)
        found = importlib.import_module(module).main()
        code = found if isinstance(found, int) else 0
        if module == f"{_AGENT}.__main__":
            threading._shutdown()  # type: ignore[attr-defined]  # as an interpreter that ends: uploads have threads
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001  a fork must not run on into its parent's code
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _show(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Show these as the command line and the environment of this process in /proc, as of one that was executed."""
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    first, first_end, second, second_end = map(int, fields[45:49])
    variables = [f"{name}={value}" for name, value in environment.items()]
    for start, end, words in ((first, first_end, arguments), (second, second_end, variables)):
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        assert len(text) <= end - start, f"{words} need more room than there is"
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    sys.path = [path for path in sys.path if Path(path).resolve() != Path(__file__).parent]
    _serve(Channel.open(int(sys.argv[1])), sys.argv[2])
