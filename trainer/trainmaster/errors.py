"""Errors that end a run for a reason that a person can remedy: what was wrong, where, and what would be right.

Standard library only.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from trainmaster.contract.wire.causes_and_exit_codes import Cause, ExitCode


class TrainmasterError(Exception):
    """The base class of our errors. The message is a sentence for a person; the agent gets the cause and the exit
    code."""

    cause: Cause = Cause.CRASH
    exit_code: int = ExitCode.CRASH


class ConfigError(TrainmasterError, ValueError):
    """The configuration cannot be obeyed. A restart does not help. The command line prints the message and exits with
    2."""

    cause = Cause.CONFIG_ERROR
    exit_code = ExitCode.CONFIG_ERROR


class DataError(TrainmasterError, RuntimeError):
    """The data can't be trained on: missing, empty, too little, or changed."""

    cause = Cause.DATA_ERROR
    exit_code = ExitCode.DATA_ERROR


class Diverged(TrainmasterError):
    """The loss or the gradients are not finite, or far above those of earlier steps.

    `samples` are the samples of the step, as positions [first, end) in the order of the data, if they are known.
    """

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
    """The last step of the run, or the one at which it was asked to stop, could not be saved."""

    cause = Cause.CHECKPOINT_FAILED
    exit_code = ExitCode.NOT_SAVED


def unknown(where: str, name: str, known: Iterable[str]) -> str:
    """Return a sentence about a name that is not known, with the nearest known name or all known names."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(names)}"
    return f"{where}: {name!r} is unknown; {hint}"
