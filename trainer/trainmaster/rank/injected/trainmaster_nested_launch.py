"""Launchers that a rank's own program starts: `torchrun` in a shell script, or a Python program that launches itself.

Each rank would start a world of its own, and all would write one snapshot. Here the launcher becomes the script that it
would start: torch's launchers, and those built on them, all end in one function of torch. It then executes the script
with this rank's number. The launcher's own parser has run by then, and its variables are set. The lines of deepspeed
and horovodrun are read as the command of a job is. A function that is launched is called in the process of the rank.
A launcher that was told another number of processes is refused.

A launcher numbers its processes, and tells them where to meet, whatever these variables were in its own environment. So
a shell script may export MASTER_PORT or WORLD_SIZE before it calls torchrun. Here the numbers of the rank replace them.

A rank that has joined its round and then launches something (an evaluation in a world of its own) is left alone. A
program that has launched a function is no rank after the function, so it may launch another one. This
file imports nothing of ours before it refuses something, and runs under Python 3.8 and newer.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import os
import sys
import types

TYPE_CHECKING = False  # typing costs time at every start of an interpreter
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

_LOCAL_RANK = "${local_rank}"
_DO_NOT_RESTART = 93
_USE_CPU = "ACCELERATE_USE_CPU"
_KEPT = ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")  # of the round and of the pod, whatever a launcher sets


def install() -> None:
    """Take over the launchers that this process has imported (a fork has), and those that it will import."""
    for name, take_over in _LAUNCHERS.items():
        if name in sys.modules:
            _take_over_imported(sys.modules[name], take_over)
    sys.meta_path.insert(0, _Finder())


def _take_over_imported(module: Any, take_over: Callable[[Any], None]) -> None:
    """Take over a module that was imported, also where other modules have imported its functions by their names."""
    before = dict(vars(module))
    take_over(module)
    for name, original in before.items():
        if vars(module)[name] is original:
            continue
        for other in list(sys.modules.values()):
            if issubclass(type(other), types.ModuleType):  # an instance may be a proxy that loads what it is asked
                names = object.__getattribute__(other, "__dict__")  # another look-up would load a lazy module
                if names.get(name) is original:
                    names[name] = vars(module)[name]


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self._loading: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _LAUNCHERS or name in self._loading:
            return None
        self._loading.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._loading.discard(name)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module
        read = getattr(loader, "get_code", None)

        def exec_and_take_over(module: Any) -> None:
            loader.get_code = read
            execute(module)
            _LAUNCHERS[name](module)

        def code_of_main(_: str) -> Any:
            """Return what `python -m` runs: the functions of the launcher's own `__main__` could not be taken over."""
            return compile(f"import {name} as launcher\nlauncher.{_MAINS[name]}()\n", str(spec.origin), "exec")

        loader.exec_module = exec_and_take_over
        if read is not None and name in _MAINS:
            loader.get_code = code_of_main
        return spec


def _take_over_elastic(module: Any) -> None:
    """Take over torch.distributed.launcher.api, which torchrun, accelerate launch and others use."""
    original = module.launch_agent
    calls = _Calls()

    def launch_agent(config: Any, entrypoint: Any, args: Any, *more: Any, **named: Any) -> Any:
        if has_joined() and not calls.are_over():
            return original(config, entrypoint, args, *more, **named)
        env = {**os.environ, **_numbers()}
        wrong = wrong_number(config.nproc_per_node, sys.argv, env)
        if wrong:
            _refuse(wrong)
        note = note_for_clusters(config.nproc_per_node, sys.argv, env)
        if note:
            sys.stderr.write(note + "\n")
        if callable(entrypoint):
            with calls, _numbered():
                return dict.fromkeys(_ranks_with_results(env), entrypoint(*args))
        return _become([str(entrypoint), *map(str, args)], env)

    module.launch_agent = launch_agent


class _Calls:
    """The calls of launched functions in this process. A function may leave its connection to the store open."""

    def __init__(self) -> None:
        self._begun, self._ended = 0, 0

    def __enter__(self) -> None:
        self._begun += 1

    def __exit__(self, *_: Any) -> None:
        self._ended += 1

    def are_over(self) -> bool:
        """Return True if there were calls, and none is under way."""
        return 0 < self._begun == self._ended


def _ranks_with_results(env: Any) -> list[int]:
    """Return the ranks under which a program finds a result: those of this node, as torch's launcher gives them.

    Rank 0 is always among them. Programs read its result, and here every rank runs the program.
    """
    first = int(env["RANK"]) - int(env["LOCAL_RANK"])
    return sorted({0, *range(first, first + int(env["LOCAL_WORLD_SIZE"]))})


def _numbers() -> dict[str, str]:
    """Return the variables that number this rank and say where its round meets, as its agent has set them."""
    json = importlib.import_module("json")
    numbers: dict[str, str] = json.loads(os.environ.get("TRAINMASTER_NUMBERS") or "{}")
    return numbers


@contextlib.contextmanager
def _numbered() -> Iterator[None]:
    """Give this process the numbers of its rank while a function is called that a launcher was to start."""
    numbers = _numbers()
    before = {name: os.environ.get(name) for name in numbers}
    os.environ.update(numbers)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _take_over_simple(module: Any) -> None:
    """Take over accelerate.commands.launch, for what it starts without torch's agent."""
    original = module.simple_launcher

    def simple_launcher(args: Any) -> Any:
        if has_joined() or getattr(args, "mpirun_hostfile", None) is not None:
            return original(args)
        program, env = module.prepare_simple_launcher_cmd_env(args)
        # A line without --cpu says nothing about it. The rank may know that its pod has no device.
        kept = (*_KEPT, *([_USE_CPU] if env.get(_USE_CPU) == "False" else []))
        return _become(program, {**env, **{name: os.environ[name] for name in kept if name in os.environ}})

    module.simple_launcher = simple_launcher


def _read_as_command(launcher: str, function: str) -> Callable[[Any], None]:
    """Take over a launcher's module. Its command line is read as if it were the job's command."""

    def take_over(module: Any) -> None:
        original = getattr(module, function)

        def start(args: Any = None) -> Any:
            if has_joined():
                return original() if args is None else original(args)
            words = [str(word) for word in (sys.argv[1:] if args is None else args)]
            try:
                with _our_package():
                    command = importlib.import_module("trainmaster.contract.launch").parse([launcher, *words])
                    options = importlib.import_module("trainmaster.contract.launch.launcher_option_effects")
                env = {**os.environ, **_numbers()}
                ranks = env.get("TRAINMASTER_RANKS_PER_POD") or env["LOCAL_WORLD_SIZE"]
                wrong = options.of_pod(command.given, int(ranks))
                if not wrong and env.get("TRAINMASTER_ROUND") == "1":  # later rounds may have other sizes
                    wrong = options.of_job(command.given, int(env["WORLD_SIZE"]))
            except ValueError as error:  # LaunchRefused
                wrong = str(error)
            if wrong:
                _refuse(wrong)
            program = command.argv
            if launcher == "deepspeed" and "no_python" not in command.given:
                program = [sys.executable, *program[1:]]
            changed = {**os.environ, **command.environment}
            return _become(program, {name: value for name, value in changed.items() if value is not None})

        setattr(module, function, start)

    return take_over


def _take_over_horovod(module: Any) -> None:
    """Take over horovod.runner.launch, which horovodrun and the function horovod.run use."""
    _read_as_command("horovodrun", "run_commandline")(module)
    original = module._run
    calls = _Calls()

    def _run(args: Any) -> Any:
        if getattr(args, "run_func", None) is None or (has_joined() and not calls.are_over()):
            return original(args)
        ranks = int({**os.environ, **_numbers()}["WORLD_SIZE"])
        if args.num_proc != ranks and os.environ.get("TRAINMASTER_ROUND") == "1":  # later rounds may have other sizes
            _refuse(
                f"horovod.run, which this job's program calls, would start {args.num_proc} processes, but the job has "
                f"{ranks} ranks: write the same number in both"
            )
        with calls:
            return [args.run_func()] * ranks

    module._run = _run


_LAUNCHERS: dict[str, Callable[[Any], None]] = {
    "torch.distributed.launcher.api": _take_over_elastic,
    "accelerate.commands.launch": _take_over_simple,
    "deepspeed.launcher.runner": _read_as_command("deepspeed", "main"),
    "horovod.runner.launch": _take_over_horovod,
}


_MAINS = {
    "accelerate.commands.launch": "main",
    "deepspeed.launcher.runner": "main",
    "horovod.runner.launch": "run_commandline",
}
"""The function that a launcher calls where it is run by `python -m`."""


def wrong_number(processes: int, argv: list[str], env: Any) -> str:
    """Return what is wrong with the number of processes that a launcher would start; "" if nothing is.

    On one machine a job's pods are as one node to a script: its number of ranks there is right, too.
    """
    here = {int(env[name]) for name in ("TRAINMASTER_RANKS_PER_POD", "LOCAL_WORLD_SIZE") if env.get(name)}
    told = any(word.startswith(("--nproc", "--num")) for word in argv) or "PET_NPROC_PER_NODE" in env
    if processes in here or (processes <= 1 and not told):
        return ""
    ranks = env.get("TRAINMASTER_RANKS_PER_POD") or env["LOCAL_WORLD_SIZE"]
    return (
        f"{_name(argv)}, which this job's program starts, would start {processes} processes in each pod, but "
        f"workers.ranksPerPod is {ranks}: write the same number in both"
    )


def note_for_clusters(processes: int, argv: list[str], env: Any) -> str:
    """Return a sentence if the number of processes fits the job on one machine alone; "" otherwise.

    Only rank 0 of a machine gets it.
    """
    ranks = env.get("TRAINMASTER_RANKS_PER_POD")
    if not ranks or processes == int(ranks) or env.get("LOCAL_RANK", "0") != "0":
        return ""
    if processes != int(env.get("LOCAL_WORLD_SIZE") or 0) or processes <= 1:
        return ""
    return (
        f"{_name(argv)} starts {processes} processes, the number of this job's ranks on one machine. On a cluster the "
        f"job would fail, because workers.ranksPerPod is {ranks} there: let both be the same number"
    )


def _name(argv: list[str]) -> str:
    return os.path.basename(argv[0]) if argv and argv[0] not in ("", "-c", "-m") else "torch's launcher"


def _become(program: list[str], env: dict[str, str]) -> NoReturn:
    """Execute a script in the place of the launcher that was to start it, with the numbers of this rank."""
    env = {**env, **_numbers()}
    words = [word.replace(_LOCAL_RANK, env.get("LOCAL_RANK", "0")) for word in program]
    for name in ("TRAINMASTER_PROGRESS_FD", "TRAINMASTER_CHANNEL_FD"):
        with contextlib.suppress(KeyError, ValueError, OSError):
            os.set_inheritable(int(os.environ[name]), True)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(words[0], words, env)


def _refuse(words: str) -> NoReturn:
    """Report why to people and to the agent, and end with a code after which no restart is tried."""
    sys.stderr.write(words + "\n")
    sys.stderr.flush()
    with contextlib.suppress(Exception), _our_package():
        codes = importlib.import_module("trainmaster.contract.wire.causes_and_exit_codes")
        importlib.import_module("trainmaster.rank.failure_message").tell(codes.Cause.CONFIG_ERROR, words, "")
    os._exit(_DO_NOT_RESTART)


@contextlib.contextmanager
def _our_package() -> Iterator[None]:
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
    sys.path.append(root)
    try:
        yield
    finally:
        sys.path.remove(root)


def has_joined() -> bool:
    """Return True if this process, or one above it in its rank, is connected to the store of the round."""
    # A rank may give what it launches a MASTER_PORT of its own.
    port = os.environ.get("TRAINMASTER_STORE", "").rpartition(":")[2] or os.environ.get("MASTER_PORT", "")
    if not port.isdigit():
        return False
    leader, pid = os.getsid(0), os.getpid()
    while pid > 1:
        if _is_connected(pid, int(port)):
            return True
        parent = _parent(pid)
        if pid == leader or parent is None:
            return False
        pid = parent
    return False


def _is_connected(pid: int, port: int) -> bool:
    links = set()
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # it was closed just now, as the list's own is in this process
                links.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{table}") as lines:
            for line in list(lines)[1:]:
                words = line.split()
                # remote address, state (01: established), inode
                if (
                    words[3] == "01"
                    and int(words[2].rpartition(":")[2], 16) == port
                    and f"socket:[{words[9]}]" in links
                ):
                    return True
    return False


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(") ")[2].split()[1])
    except OSError:
        return None
