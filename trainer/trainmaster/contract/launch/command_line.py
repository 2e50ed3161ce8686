"""What a user's command line means: an entry that can be observed and forked, or a program that is executed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from trainmaster.contract.launch import launcher_option_effects
from trainmaster.contract.launch.launch_errors import LaunchRefused
from trainmaster.contract.launch.launcher_option_tables import LOCAL_RANK, Launch, read_by_tables
from trainmaster.contract.launch.launchers import (
    ACCELERATE,
    HOROVODRUN,
    Launcher,
    find_interpreted_launcher,
    find_launcher,
)
from trainmaster.contract.launch.python_options import is_python, program_of, read_python
from trainmaster.contract.launch.wrappers import Wrapped, unwrap

Around = Callable[[list[str]], list[str]]
Reader = Callable[[Launcher, Around], Launch]
"""A function that reads a launcher's options. Its second argument adds to a program what precedes the launcher."""


@dataclass(frozen=True)
class Command:
    """The meaning of a command line. `entry` is None for a program that is executed with `argv`."""

    argv: list[str]
    entry: dict[str, Any] | None = None
    flags: list[str] = field(default_factory=list)  # options of the interpreter; any except -u excludes forking
    environment: dict[str, str | None] = field(default_factory=dict)  # set for ranks; None: taken away
    notes: tuple[str, ...] = ()  # sentences: what of the line has no effect
    launcher: str = ""  # whose place Trainmaster takes
    given: dict[str, str] = field(default_factory=dict)  # the launcher's options, see `Launch`

    def of_rank(self, local_rank: int) -> Command:
        """Return the command of one rank: torch's launchers and DeepSpeed's put a rank's number in
        its pod into its arguments."""
        if self.launcher in ("", ACCELERATE, HOROVODRUN):
            return self
        argv = [_numbered(word, local_rank) for word in self.argv]
        entry = self.entry
        if entry is not None:
            entry = {**entry, "args": [_numbered(word, local_rank) for word in entry["args"]]}
        return replace(self, argv=argv, entry=entry)


def parse(
    argv: list[str],
    read: Reader = lambda launcher, _: read_by_tables(launcher),
    is_ours: Callable[[str], bool] = is_python,
) -> Command:
    """Return what a command line means.

    `read` is the parser of launchers' options. `is_ours` returns True if a program is the interpreter that agents run,
    so that ranks can be forked. Raises LaunchRefused, in a sentence, for a command that ranks cannot run.
    """
    if not argv:
        raise LaunchRefused("the command is empty: give for instance [python, train.py]")
    line = unwrap(argv)
    launcher = _launcher(line)
    if launcher is None:
        return _program(line, is_ours)
    launch = read(launcher, line.around)
    told = tuple(launcher_option_effects.notes(launcher.kind, launch.given))
    started = Wrapped(_started(launcher.python, launch))
    inner = unwrap(started.argv)
    if _launcher(inner) is not None:
        raise LaunchRefused(f"{launcher.kind} starts a launcher of ranks: write one of the two")
    behind = replace(
        inner,
        prefix=[*line.prefix, *inner.prefix],
        shell=line.shell,
        environment={**line.environment, **launch.environment, **inner.environment},
        notes=(*line.notes, *told, *inner.notes),
    )
    return replace(_program(behind, is_ours), launcher=launcher.kind, given=launch.given)


def _launcher(line: Wrapped) -> Launcher | None:
    """Return the launcher that a line runs, by its own name or as a module or script of an interpreter, or None."""
    if not line.argv or not is_python(line.argv[0]):
        return find_launcher(line.argv)
    return find_interpreted_launcher(line.argv[0], read_python(line.argv).entry)


def _started(python: str, launch: Launch) -> list[str]:
    if launch.kind == "program":
        return [launch.name, *launch.args]
    return [python, *(["-m"] if launch.kind == "module" else []), launch.name, *launch.args]


def _program(line: Wrapped, is_ours: Callable[[str], bool]) -> Command:
    """Return the command behind launcher and wrappers."""
    common: dict[str, Any] = {"environment": line.environment, "notes": line.notes}
    whole = line.around(line.argv)
    if not is_python(line.argv[0]):
        return Command(whole, **common)
    read = read_python(line.argv)
    if read.entry is None or line.prefix or line.shell or not is_ours(line.argv[0]):
        return Command(whole, **common)
    return Command(program_of(line.argv[0], read.entry, read.flags), read.entry, read.flags, **common)


def _numbered(word: str, local_rank: int) -> str:
    return word.replace(LOCAL_RANK, str(local_rank))
