"""What precedes the program in a command line: `env X=1 …`, `nohup …`, `nice -n 5 …`, `uv run …`, `sh -c '…'`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from trainmaster.contract.launch.launch_errors import LaunchRefused
from trainmaster.contract.launch.launchers import find_launcher
from trainmaster.contract.launch.python_options import is_python

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "ash")
# A shell's line with any of these is more than one simple command.
_SHELL_SYNTAX = re.compile(r"[;&|<>()$`*?\[\]{}!#~\n\\]")
_IN_BACKGROUND = re.compile(r"(?<!&)&\s*$")
_WITHOUT_EFFECT = {"nohup": "output goes to logs anyway, and no terminal ends a rank", "time": "no time is printed"}


@dataclass(frozen=True)
class Wrapped:
    """A command line without what precedes its program."""

    argv: list[str]
    environment: dict[str, str | None] = field(default_factory=dict)  # None: the variable is taken away
    prefix: list[str] = field(default_factory=list)  # what must stay before the program, since it has an effect
    shell: list[str] = field(default_factory=list)  # `bash -lc` and its kin: the program is one word behind it
    notes: tuple[str, ...] = ()

    def around(self, program: list[str]) -> list[str]:
        """Return `program` with what must precede it."""
        inner = [*self.prefix, *program]
        return [*self.shell, "exec " + shlex.join(inner)] if self.shell else inner


def unwrap(argv: list[str]) -> Wrapped:
    """Remove what precedes a program, as far as it is understood.

    Raises LaunchRefused for a wrapper that takes from ranks what they need, and for a line that only a shell can read.
    """
    line = Wrapped(list(argv))
    if argv and _ASSIGNMENT.match(argv[0]):
        raise LaunchRefused(f"{argv[0]} is no program: write [env, {argv[0]}, …], or set it in the container's env")
    if len(argv) == 1 and len(words := argv[0].split()) > 1 and _is_understood(words):
        raise LaunchRefused(f"{argv[0]!r} is one word: write its words as a list, [{', '.join(words[:2])}, …]")
    while line.argv:
        name = line.argv[0].rpartition("/")[2]
        taken = _take_shell(line) if name in _SHELLS else _TAKEN[name](line) if name in _TAKEN else None
        if taken is None:
            return line
        line = taken
    return line


def _take_env(line: Wrapped) -> Wrapped | None:
    """Return the line without `env [-u NAME] [NAME=VALUE]…`. Raises LaunchRefused for options that ranks cannot
    have."""
    rest, changed = line.argv[1:], dict(line.environment)
    while rest and rest[0].startswith("-"):
        word, rest = rest[0], rest[1:]
        name, _, value = word.partition("=")
        if word in ("-", "-i", "--ignore-environment"):
            raise LaunchRefused("env -i takes away the variables by which ranks find each other: leave -i out")
        if word == "--":
            break
        if name == "--unset" or word[:2] == "-u":
            gone = value or word[2:] or (rest.pop(0) if rest else "")
            changed[gone] = None
            continue
        return None  # -C, -S, --help and others: executed as it is
    while rest and _ASSIGNMENT.match(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        changed[name] = value
    if not rest:
        raise LaunchRefused("env is followed by no program: write the command of a rank after its variables")
    return replace(line, argv=rest, environment=changed)


def _take_without_effect(line: Wrapped) -> Wrapped | None:
    name, rest = line.argv[0].rpartition("/")[2], line.argv[1:]
    while name == "time" and rest and rest[0] in ("-p", "-v"):
        rest = rest[1:]
    if not rest or rest[0].startswith("-"):
        return None
    return replace(line, argv=rest, notes=(*line.notes, f"{name} is left out: {_WITHOUT_EFFECT[name]}"))


def _take_exec(line: Wrapped) -> Wrapped | None:
    return replace(line, argv=line.argv[1:]) if line.argv[1:] and line.argv[1][0] != "-" else None


def _take_shell(line: Wrapped) -> Wrapped | None:
    """Return the line in `sh -c 'one simple command'`, or None for any other line, which the shell must run.

    Raises LaunchRefused for a line that leaves its last command running when the shell ends.
    """
    options, rest = line.argv[1:2], line.argv[2:]
    if rest and re.fullmatch(r"-[a-z]*c", options[0]) and _IN_BACKGROUND.search(rest[0]):
        raise LaunchRefused("the shell's line ends with &, so the rank would end at once: leave & out, and nohup too")
    if len(options) != 1 or not re.fullmatch(r"-[a-z]*c", options[0]) or len(rest) != 1:
        return None
    inner = _simple_command(rest[0])
    if inner is None:
        return None
    changed = dict(line.environment)
    while inner and _ASSIGNMENT.match(inner[0]):
        name, _, value = inner.pop(0).partition("=")
        changed[name] = value
    if inner[:1] == ["exec"]:
        inner = inner[1:]
    if not inner or not _is_understood(inner):
        return None
    if "l" in options[0] or "i" in options[0]:  # a login shell reads files that set variables
        if line.shell:
            return None
        return replace(line, argv=inner, environment=changed, shell=[*line.prefix, *line.argv[:2]], prefix=[])
    return replace(line, argv=inner, environment=changed)


def _is_understood(argv: list[str]) -> bool:
    """Return True if the first word is the name of a Python, a launcher or a wrapper; others may be the shell's own."""
    try:
        launcher = find_launcher(argv)
    except LaunchRefused:
        return True
    return launcher is not None or is_python(argv[0]) or argv[0].rpartition("/")[2] in {*_TAKEN, *_SHELLS}


def _simple_command(text: str) -> list[str] | None:
    """Return the words of a shell's line; None if it is more than a simple command of plain words."""
    # What single quotes hold is plain; in double quotes a shell still looks for these four.
    bare = re.sub(r"'[^']*'", "", text)
    bare = re.sub(r'"[^"$`\\!]*"', "", bare)
    if _SHELL_SYNTAX.search(bare.strip()):
        return None
    try:
        return shlex.split(text)
    except ValueError:
        return None


def _keep(with_value: str, without: str = "", operands: int = 0) -> Callable[[Wrapped], Wrapped | None]:
    """Return a function for a wrapper that stays, with its options.

    The options are those with a value, those without, and then `operands` words of its own.
    """
    valued, flags = set(with_value.split()), set(without.split())

    def take(line: Wrapped) -> Wrapped | None:
        place = 1
        while place < len(line.argv) and line.argv[place].startswith("-"):
            word = line.argv[place]
            name = word.split("=")[0]
            if word == "--":
                place += 1
                break
            if word in valued:
                place += 2
            elif word in flags or ("=" in word and name in valued) or _is_glued(word, valued):
                place += 1
            else:
                return None
        place += operands
        if place >= len(line.argv):
            return None
        return replace(line, argv=line.argv[place:], prefix=[*line.prefix, *line.argv[:place]])

    return take


def _is_glued(word: str, valued: set[str]) -> bool:
    """Return True for an option with a glued value: `-n5`, `-oL`, `-5`."""
    return (word[:2] in valued and word[1] != "-") or word[1:].isdigit()


def _behind(words: int, take: Callable[[Wrapped], Wrapped | None], verb: str) -> Callable[[Wrapped], Wrapped | None]:
    """Return a function for a wrapper whose options begin after `verb`, as in `uv run …`."""

    def taken(line: Wrapped) -> Wrapped | None:
        if line.argv[1:words] != [verb]:
            return None
        found = take(replace(line, argv=line.argv[1:], prefix=[*line.prefix, line.argv[0]]))
        if found is None:
            return None
        # `uv run train.py` runs a script by the environment's interpreter.
        if found.argv[0].endswith(".py"):
            found = replace(found, argv=["python", *found.argv])
        return found

    return taken


_UV = "-p --python --with --with-editable --with-requirements --extra --group --only-group --env-file --directory"
_UV += " --project --package --index --index-url --extra-index-url --cache-dir --no-group --no-extra"
_UV_FLAGS = "--frozen --locked --no-sync --isolated --all-extras --no-project --active --offline -q --quiet -v"
_UV_FLAGS += " --verbose --no-dev --dev --exact --no-env-file --refresh -n --no-cache --all-groups --all-packages"
_CONDA = "-n --name -p --prefix --cwd"
_CONDA_FLAGS = "--no-capture-output --live-stream -v --verbose"

_TAKEN: Mapping[str, Callable[[Wrapped], Wrapped | None]] = {
    "env": _take_env,
    "nohup": _take_without_effect,
    "time": _take_without_effect,
    "exec": _take_exec,
    "nice": _keep("-n --adjustment"),
    "ionice": _keep("-c --class -n --classdata", "-t --ignore"),
    "taskset": _keep("", "-a --all-tasks -c --cpu-list", operands=1),
    "chrt": _keep("-T -P -D", "-b -f -i -o -r --batch --fifo --idle --other --rr", operands=1),
    "numactl": _keep(
        "-i --interleave -p --preferred -P --preferred-many -m --membind -N --cpunodebind -C --physcpubind",
        "-l --localalloc -a --all -b --balancing",
    ),
    "stdbuf": _keep("-i --input -o --output -e --error"),
    "setsid": _keep("", "-c --ctty -w --wait"),
    "timeout": _keep("-k --kill-after -s --signal", "--foreground --preserve-status -v --verbose", operands=1),
    "tini": _keep("-p", "-s -g -v -vv -vvv"),
    "dumb-init": _keep("--rewrite -r", "--single-child -c --verbose -v"),
    "uv": _behind(2, _keep(_UV, _UV_FLAGS), "run"),
    "poetry": _behind(2, _keep(""), "run"),
    "pipenv": _behind(2, _keep(""), "run"),
    "pdm": _behind(2, _keep("-p --project", "-s --site-packages"), "run"),
    "rye": _behind(2, _keep(""), "run"),
    "pixi": _behind(2, _keep("-e --environment --manifest-path", "--frozen --locked"), "run"),
    "conda": _behind(2, _keep(_CONDA, _CONDA_FLAGS), "run"),
    "mamba": _behind(2, _keep(_CONDA, _CONDA_FLAGS), "run"),
    "micromamba": _behind(2, _keep(_CONDA, _CONDA_FLAGS), "run"),
}
