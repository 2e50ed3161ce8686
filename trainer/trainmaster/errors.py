"""Errors that end a run for a reason that a person can act on: what was wrong, where, and what would be right.

Standard library only.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from trainmaster.contract.wire.codes import Cause, ExitCode


class TrainmasterError(Exception):
    """Its message is a sentence for a person; the cause and the exit code are what the agent gets to know."""

    cause: Cause = Cause.CRASH
    exit_code: int = ExitCode.CRASH


class ConfigError(TrainmasterError, ValueError):
    """The configuration can't be obeyed. A restart doesn't help; the command line prints it and exits 2."""

    cause = Cause.CONFIG_ERROR
    exit_code = ExitCode.CONFIG_ERROR


class DataError(TrainmasterError, RuntimeError):
    """The data can't be trained on: missing, empty, too little, or changed."""

    cause = Cause.DATA_ERROR
    exit_code = ExitCode.DATA_ERROR


class Diverged(TrainmasterError):
    """The loss or the gradients are not finite, or far from what they were. `samples`: the step's, [first, end)
    positions of the data's order, where that is known."""

    cause = Cause.DIVERGED
    exit_code = ExitCode.DIVERGED

    def __init__(self, message: str, samples: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.samples = samples


class Fenced(TrainmasterError):
    """A newer round owns the storage: this process belongs to a world that was replaced."""

    cause = Cause.FENCED
    exit_code = ExitCode.FENCED


class NotSaved(TrainmasterError):
    """The last step, or the one at which a stop was asked for, could not be saved."""

    cause = Cause.CHECKPOINT_FAILED
    exit_code = ExitCode.NOT_SAVED


def unknown(where: str, name: str, known: Iterable[str]) -> str:
    """A sentence for a name that isn't known, with the nearest one that is."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(names)}"
    return f"{where}: {name!r} is unknown; {hint}"
