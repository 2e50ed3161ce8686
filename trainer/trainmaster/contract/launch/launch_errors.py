"""The exceptions for a command line that is not run."""

from __future__ import annotations


class LaunchRefused(ValueError):
    """A command that ranks cannot run as a person wrote it. The message says what to write instead."""


class UnknownOption(LaunchRefused):
    """An option of a launcher that is in no table. The launcher's own parser, if it is installed, may know it."""

    def __init__(self, launcher: str, option: str) -> None:
        super().__init__(
            f"{launcher}: the option {option} is not known, so it is not clear where the script begins; leave it out, "
            f"or start the script by [python, SCRIPT]"
        )
        self.option = option
