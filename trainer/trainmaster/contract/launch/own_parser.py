"""Asks a launcher itself what it would start. It runs in the interpreter that has the launcher, which may not be ours.

`own_parser.py REQUEST`, where REQUEST is JSON: {"launcher": "torchrun", "options": [...]}. The last line of the output
is MARK and JSON: the fields of `launcher_option_tables.Launch` and "files", which the answer depends on; or
{"refused": "why"}, or {"missing": "the package that is not installed"}. The launcher's own functions read its options
and make the variables of its script; only the place where it would start processes is replaced. This file imports
nothing of ours, and runs under Python 3.8 and newer.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from types import SimpleNamespace
from typing import Any, NoReturn

MARK = "TRAINMASTER-LAUNCH "
LIMIT_S = 300.0
"""Seconds that this program may take: a launcher imports torch before it reads its options."""

_USE_CPU = "ACCELERATE_USE_CPU"
_ABSENT = object()
# The rendezvous and the devices are not the launcher's business here, nor is how many threads it takes by default.
_NOT_OBEYED = ("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "ASCEND_RT_VISIBLE_DEVICES")


class _Started(BaseException):
    """The exception that is raised where the launcher would start its processes. `except Exception` does not catch
    it."""

    def __init__(self, program: list[str], environment: dict[str, str]) -> None:
        super().__init__()
        self.program = program
        self.environment = environment


class _Refused(Exception):
    pass


def main() -> None:
    request = json.loads(sys.argv[1])
    kind, options = request["launcher"], request["options"]
    given: dict[str, str] = {}
    _spy_on_parsers(given)
    try:
        answer = _accelerate(options, given) if kind == "accelerate launch" else _torch(kind, options, given)
    except ModuleNotFoundError as error:
        answer = {"missing": error.name or str(error)}
    except SystemExit:
        answer = {"refused": "it would start no script"}
    except Exception as error:  # noqa: BLE001  whatever a launcher raises is its reason to start nothing
        answer = {"refused": " ".join(str(error).split()) or type(error).__name__}
    sys.stdout.write("\n" + MARK + json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads of what was imported must not hold it


def _spy_on_parsers(given: dict[str, str]) -> None:
    """Let parsers report which options were on the command line, and raise an exception instead of an exit."""
    original = argparse.ArgumentParser.parse_args

    def parse_args(parser: Any, args: Any = None, namespace: Any = None) -> Any:
        names = {action.dest for action in parser._actions if action.option_strings}
        probed = original(parser, args, argparse.Namespace(**{action.dest: _ABSENT for action in parser._actions}))
        for name in names:
            value = getattr(probed, name, _ABSENT)
            if value is not _ABSENT:
                given[name] = "" if value is True or value is False else str(value)
        for name in names - set(given):
            if os.environ.get("PET_" + name.upper()):  # torchrun's own variables for its options
                given[name] = os.environ["PET_" + name.upper()]
        return original(parser, args, namespace)

    def error(parser: Any, message: str) -> NoReturn:
        raise _Refused(message)

    argparse.ArgumentParser.parse_args = parse_args  # type: ignore[method-assign, assignment]
    argparse.ArgumentParser.error = error  # type: ignore[method-assign, assignment]


def _torch(kind: str, options: list[str], given: dict[str, str]) -> dict[str, Any]:
    run: Any = importlib.import_module("torch.distributed.run")
    run.determine_local_world_size = lambda _: 1  # the job says how many there are
    entry = run
    if kind == "torch.distributed.launch":
        entry = importlib.import_module("torch.distributed.launch")
    args = entry.parse_args(options)
    if kind == "torch.distributed.launch" and args.no_python and not args.use_env:
        raise _Refused("--no-python needs --use-env beside it")
    started = _elastic(run, args)
    return {**_described(args, started), "given": given, "environment": {}, "files": _stamps(run.__file__)}


def _elastic(run: Any, args: Any) -> list[str]:
    """Return the program of a rank, by torchrun's own rules."""
    _, program, rest = run.config_from_args(args)
    return [program if isinstance(program, str) else "", *rest]


def _accelerate(options: list[str], given: dict[str, str]) -> dict[str, Any]:
    launch: Any = importlib.import_module("accelerate.commands.launch")
    run: Any = importlib.import_module("torch.distributed.run")
    run.determine_local_world_size = lambda _: 1
    args = launch.launch_command_parser().parse_args(options)
    validate = launch._validate_launch_command

    def validated(args: Any) -> Any:
        result = validate(args)
        args = result[0]
        count = getattr(args, "num_processes", None)
        if "config_file" in given and count and "num_processes" not in given:
            given["num_processes"] = str(count)
        # The job says how many machines there are, and Trainmaster opens the rendezvous.
        args.num_machines, args.machine_rank, args.main_process_ip, args.main_process_port = 1, 0, None, 0
        args.rdzv_backend, args.rdzv_conf, args.tee, args.log_dir = "static", "", "0", None
        return result

    def elastic(args: Any) -> NoReturn:
        raise _Started(_elastic(run, args), dict(os.environ))

    def simple(program: list[str], env: dict[str, str]) -> NoReturn:
        raise _Started(program, env)

    def no_device(*_: Any) -> NoReturn:
        raise _Refused("ranks are started on this job's pods alone, not on TPUs and not by SageMaker")

    launch._validate_launch_command = validated
    launch.subprocess = SimpleNamespace(Popen=simple)
    launch.tpu_launcher = launch.tpu_pod_launcher = launch.sagemaker_launcher = no_device
    run.run = elastic
    before = dict(os.environ)
    files = _stamps(launch.__file__, run.__file__, sys.modules["accelerate"].__file__, _config_file(launch, args))
    try:
        launch.launch_command(args)
    except _Started as started:
        changed = {n: v for n, v in started.environment.items() if before.get(n) != v and n not in _NOT_OBEYED}
        if "num_cpu_threads_per_process" not in given:
            changed.pop("OMP_NUM_THREADS", None)
        if changed.get(_USE_CPU) == "False":  # a line without --cpu says nothing about it
            del changed[_USE_CPU]
        return {**_described(args, started.program), "given": given, "environment": changed, "files": files}
    raise _Refused("it would start no script")


def _config_file(launch: Any, args: Any) -> str | None:
    return args.config_file or getattr(launch, "default_config_file", None)


def _described(args: Any, program: list[str]) -> dict[str, Any]:
    """Return (kind, name, arguments) of what is started.

    `program` begins with the interpreter, or with "" for run_path.
    """
    if args.no_python and program[0]:
        return {"kind": "program", "name": program[0], "args": program[1:]}
    rest = program[1:]
    if rest[:1] == ["-u"]:
        rest = rest[1:]
    kind, rest = ("module", rest[1:]) if rest[:1] == ["-m"] else ("script", rest)
    return {"kind": kind, "name": rest[0], "args": rest[1:]}


def _stamps(*paths: str | None) -> dict[str, int | None]:
    """Return when each file was last changed, in nanoseconds, or None for a file that does not exist."""
    found: list[tuple[str, int | None]] = []
    for path in paths:
        if path:
            found.append((os.path.abspath(path), os.stat(path).st_mtime_ns if os.path.exists(path) else None))
    return dict(found)


if __name__ == "__main__":
    main()
