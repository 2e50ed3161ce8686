"""The parser of the command line. An error is one sentence, which names the command and what was meant.

The arguments and the help of a command are in its own module (`command_table.module_of`). Only the modules of commands
that the command line names are imported, so that each command starts as fast as if it were the only one.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from trainmaster import __version__
from trainmaster_operator.cli import command_table
from trainmaster_operator.cli.refusal import EXIT_CODE

DESCRIPTION = (
    "Trainmaster runs distributed training on this machine and on Kubernetes. When a rank fails, training continues "
    "from its last checkpoint, with the same losses as without the failure."
)
FURTHER_HELP = (
    "`trainmaster COMMAND --help` describes a command and shows examples. Exit codes of all commands: 0 means that the "
    "command did its work, 2 that it refused its arguments or its input. Other codes are in the help of the command."
)
WIDTH = 100
"""Maximum number of columns of a line of help; on a narrower terminal its width."""


class Formatter(argparse.HelpFormatter):
    """Fills each paragraph of a text separately. Indented lines, such as those of a table, stay as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)
        self._width = min(self._width, WIDTH)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(_filled(paragraph, width, indent) for paragraph in text.strip("\n").split("\n\n"))


def _filled(paragraph: str, width: int, indent: str) -> str:
    """Return a filled paragraph. If its second line is indented, the paragraph is a heading with a table or examples
    below it, and stays as it is."""
    import textwrap  # Only the help needs it.

    first, _, rest = paragraph.partition("\n")
    if first.startswith(" ") or rest.startswith(" "):
        return textwrap.indent(paragraph, indent)
    return textwrap.fill(" ".join(paragraph.split()), width, initial_indent=indent, subsequent_indent=indent)


class Parser(argparse.ArgumentParser):
    """The parser of one command. The parsers of commands that are added to it are of this class too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=Formatter, **options)
        self._positionals.title = "arguments"
        self.examples: tuple[tuple[str, str], ...] = ()
        """(command line, what it does) for each example."""
        self.exit_codes: tuple[tuple[int, str], ...] = ()
        """The exit codes other than 0 (done) and 2 (refused), or with a further meaning."""
        self.table: Callable[[], str] = str
        """Returns a further part of the help that takes time to make."""

    def describe(
        self, description: str, *examples: tuple[str, str], exit_codes: Sequence[tuple[int, str]] = ()
    ) -> None:
        """Say what the command does and what it writes where, with examples: (command line, what it does) each."""
        self.description, self.examples, self.exit_codes = description, examples, tuple(exit_codes)

    def format_help(self) -> str:
        parts = [self.table()]
        if self.exit_codes:
            parts.append(_listed("exit codes", [(str(code), meaning) for code, meaning in self.exit_codes]))
        if self.examples:
            parts.append("examples:\n" + "\n".join(f"  {line}\n      {does}" for line, does in self.examples))
        if any(parts):
            self.epilog = "\n\n".join(part for part in parts if part)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print the message as a sentence, without argparse's lines of usage before it, and exit with code 2."""
        self._refuse(
            message if message.endswith("?") else f"{message}; {self.prog} --help lists the commands and options"
        )

    def _refuse(self, sentence: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {sentence}\n")
        raise SystemExit(EXIT_CODE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse and refuse arguments that are left over. argparse passes leftover arguments of a command to the
        parser above it, whose error names neither the command nor its options."""
        given, left = super().parse_known_args(args, namespace)
        options = [word.partition("=")[0] for word in left if word.startswith("-")]
        if options:
            known = (name for action in self._actions for name in action.option_strings)
            self.error(_unknown(options[0], known))
        if left:
            self.error(f"there is no place for the argument {left[0]}")
        return given, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known: Iterable[str] = map(str, action.choices)
        if isinstance(action, argparse._SubParsersAction):
            known = command_table.names()
            if value in command_table.FORMER:
                self._refuse(f"there is no command {value} any more; use {command_table.FORMER[value]}")
        self.error(_unknown(str(value), known))


def _unknown(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"{word} is unknown" + (f"; did you mean {near[0]}?" if near else "")


def _listed(title: str, rows: Iterable[tuple[str, str]], width: int = 7) -> str:
    """Return a heading with two columns below it. `width`: width of the first column, with its margins."""
    import textwrap  # Only the help needs it.

    cells = list(rows)
    lines = [
        textwrap.fill(text, 80, initial_indent=f"  {name}".ljust(width), subsequent_indent=" " * width)
        for name, text in cells
    ]
    return f"{title}:\n" + "\n".join(lines)


class _Overview(Parser):
    """The parser of `trainmaster` itself. Its help lists the commands below their headings."""

    def format_help(self) -> str:
        groups = [_listed(title, listed.items(), 14) for title, listed in command_table.GROUPS.items()]
        self.description = "\n\n".join([DESCRIPTION, *groups])
        return super().format_help()


def parser(words: Sequence[str] | None = None) -> Parser:
    """Return the parser. `words`: the command line for which it is made, so that it knows only the commands in it;
    None: it knows all commands."""
    top = _Overview(prog="trainmaster", usage="trainmaster COMMAND ...", epilog=FURTHER_HELP)
    top.add_argument("--version", action="version", version=f"trainmaster {__version__}", help="print the version")
    added = top.add_subparsers(
        parser_class=Parser,
        dest="command",
        required=True,
        prog="trainmaster",
        metavar="COMMAND",
        help=argparse.SUPPRESS,
    )
    for name in command_table.names():
        if words is None or name in words:
            importlib.import_module(command_table.module_of(name)).declare(added.add_parser(name))
    return top
