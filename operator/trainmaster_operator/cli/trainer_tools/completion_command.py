"""`trainmaster completion`: prints a script with which a shell completes commands and options."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser

SHELLS = ("bash", "zsh", "fish")


def declare(command: Parser) -> None:
    command.describe(
        "Prints a script that makes the Tab key complete commands, options, files, runs and faults. It writes no file.",
        ("source <(trainmaster completion bash)", "for this shell; in ~/.bashrc, for each new one"),
        ("trainmaster completion fish > ~/.config/fish/completions/trainmaster.fish", "for fish"),
    )
    command.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")
    command.set_defaults(func=_completion)


def _completion(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli.trainer_tools.shell_completion import completion

    return completion(options.shell)
