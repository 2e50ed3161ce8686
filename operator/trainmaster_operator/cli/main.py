"""The `trainmaster` command. For bad input it writes one sentence per problem to stderr, exits with code 2 and
leaves nothing behind."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from trainmaster.tools import closed_stdout
from trainmaster_operator.cli.argument_parser import parser
from trainmaster_operator.cli.refusal import EXIT_CODE, Refusal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
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
        for line in refusal.lines:
            sys.stderr.write(f"trainmaster: {line}\n")
        return EXIT_CODE
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return closed_stdout.closed()


if __name__ == "__main__":
    sys.exit(main())
