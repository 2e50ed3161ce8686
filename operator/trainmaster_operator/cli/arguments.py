"""The parser of the command line. Its errors are one sentence each, which names the command and what was meant."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from trainmaster_operator.cli.refusal import EXIT_CODE


class Parser(argparse.ArgumentParser):
    """The parsers of commands that are added to it are of this class too."""

    def error(self, message: str) -> NoReturn:
        """Print the message as a sentence, without argparse's lines of usage before it, and exit with code 2."""
        hint = "" if message.endswith("?") else f"; {self.prog} --help shows what it takes"
        sys.stderr.write(f"{self.prog}: {message}{hint}\n")
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
        if action.choices is not None and value not in action.choices:
            self.error(_unknown(str(value), map(str, action.choices)))


def _unknown(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"{word} is unknown" + (f"; did you mean {near[0]}?" if near else "")
