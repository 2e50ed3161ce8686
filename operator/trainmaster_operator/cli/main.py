"""The `trainmaster` command. For bad input it writes one sentence per problem to stderr, exits with code 2 and
leaves nothing behind."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence

from trainmaster.tools import closed_stdout
from trainmaster_operator.cli.argument_parser import parser
from trainmaster_operator.cli.refusal import EXIT_CODE, Refusal, why
from trainmaster_operator.cli.terminal_text import without_controls

NOT_WRITTEN = 1
"""Exit code if the output cannot be written, for example because its disk is full."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return its exit code."""
    _open_closed_streams()
    try:
        try:
            return _run(sys.argv[1:] if arguments is None else list(arguments))
        finally:
            sys.stdout.flush()  # The interpreter would do it later, and end with another code if that fails.
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return closed_stdout.closed()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not _is_in_a_folder():
            sys.stderr.write("trainmaster: the current folder was deleted; change to another folder\n")
            return EXIT_CODE
        if not _is_of_output(error):
            raise
        sys.stderr.write(f"trainmaster: the output cannot be written: {why(error)}\n")
        closed_stdout.closed()
        return NOT_WRITTEN


def _run(words: list[str]) -> int:
    if not words:
        parser(words).print_help()
        return 0
    options = parser(words).parse_args(words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # Ranks may print characters that the terminal cannot show.
    try:
        return int(options.func(options))
    except Refusal as refusal:
        for line in refusal.lines:  # It may quote others: an API server, a webhook, a command of the kubeconfig.
            sys.stderr.write(f"trainmaster: {without_controls(line)}\n")
        return EXIT_CODE


def _open_closed_streams() -> None:
    """Open the null device for standard streams that are closed, as with `>&-`. It usually gets their numbers, which
    would otherwise go to the next files, such as a lock, and child processes would write into these."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def _is_in_a_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _is_of_output(error: OSError) -> bool:
    """Return whether this is what a write to standard output raises. An error of a file that is opened has its name,
    and commands handle the errors of files that they write."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


if __name__ == "__main__":
    sys.exit(main())
