"""The parser of the command line. An error is one sentence, which names the command and what was meant.

What a command takes, and its help, is in its module of `commands`. Only the modules of commands that a command line
names are imported, so that each command starts as fast as if it were the only one.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import keyword
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
"""The most columns of a line of help, and as few as the terminal has."""


class Formatter(argparse.HelpFormatter):
    """Fills each paragraph of a text by itself. Indented lines, such as those of a table, stay as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)
        self._width = min(self._width, WIDTH)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(_filled(paragraph, width, indent) for paragraph in text.strip("\n").split("\n\n"))


def _filled(paragraph: str, width: int, indent: str) -> str:
    """A paragraph whose second line is indented is a heading with a table or with examples below it."""
    import textwrap  # only the help needs it

    first, _, rest = paragraph.partition("\n")
    if first.startswith(" ") or rest.startswith(" "):
        return textwrap.indent(paragraph, indent)
    return textwrap.fill(" ".join(paragraph.split()), width, initial_indent=indent, subsequent_indent=indent)


class Parser(argparse.ArgumentParser):
    """The parsers of commands that are added to it are of this class too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=Formatter, **options)
        self._positionals.title = "arguments"
        self.examples: tuple[tuple[str, str], ...] = ()
        """(command line, what it does) each."""
        self.exit_codes: tuple[tuple[int, str], ...] = ()
        """Those that mean more than 0, done, and 2, refused."""
        self.table: Callable[[], str] = str
        """Makes a further part of the help, which takes time to make."""

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
        self._refuse(message if message.endswith("?") else f"{message}; {self.prog} --help shows what it takes")

    def _refuse(self, sentence: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {sentence}\n")
        raise SystemExit(EXIT_CODE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse arguments that are left over. argparse hands those of a command to the parser above it, whose error
        names neither the command nor its options."""
        given, left = super().parse_known_args(args, namespace)
        options = [word.partition("=")[0] for word in left if word.startswith("-")]
        if options:
            known = (name for action in self._actions for name in action.option_strings)
            self.error(_unknown(options[0], known))
        if left:
            self.error(f"{left[0]} is one argument too many")
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
    """A heading with two columns below it. width: of the first one, with its margins."""
    import textwrap  # only the help needs it

    cells = list(rows)
    lines = [
        textwrap.fill(text, 80, initial_indent=f"  {name}".ljust(width), subsequent_indent=" " * width)
        for name, text in cells
    ]
    return f"{title}:\n" + "\n".join(lines)


class _Overview(Parser):
    """That of `trainmaster` itself. Its help has the commands below their headings."""

    def format_help(self) -> str:
        groups = [_listed(title, listed.items(), 14) for title, listed in command_table.GROUPS.items()]
        self.description = "\n\n".join([DESCRIPTION, *groups])
        return super().format_help()


def parser(words: Sequence[str] | None = None) -> Parser:
    """Return the parser. words: of the command line that it is for: it knows only the commands that they name; None: it
    knows all commands."""
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
            _module(name).declare(added.add_parser(name))
    return top


def _module(name: str) -> Any:
    module = f"{name}_" if keyword.iskeyword(name) else name
    return importlib.import_module(f"{command_table.__name__}.{module}")
