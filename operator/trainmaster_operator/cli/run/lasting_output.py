"""The output of a run, which may last longer than its reader, as with `| head`, or than the space on its disk.

A run that nobody reads any more continues, as one that was started with its output in a file would. Other commands end
with the code of SIGPIPE then (`closed_stdout`), because their output is all that they do.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, cast

from trainmaster_operator.cli.refusal import why


@contextmanager
def lasting(out: Path) -> Iterator[None]:
    """Let standard output and standard error fail without an error here: their readers may end, their terminal may
    be closed, their disk may be full. `out`: the output folder of the run, which standard error then names."""
    stdout, stderr = sys.stdout, sys.stderr

    def say_so(error: OSError) -> None:
        unread = isinstance(error, BrokenPipeError)
        what = "nothing reads the output any more" if unread else f"the output cannot be written: {why(error)}"
        sys.stderr.write(f"trainmaster: {what}; the run continues, and `trainmaster status {out} --watch` shows it\n")

    sys.stdout = cast("TextIO", _Lasting(stdout, say_so))
    sys.stderr = cast("TextIO", _Lasting(stderr, lambda error: None))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = stdout, stderr


class _Lasting:
    """A stream that writes to nowhere once it has failed. `failed`: called once, with the error."""

    def __init__(self, stream: TextIO, failed: Callable[[OSError], None]) -> None:
        self._stream, self._failed = stream, failed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, or drop it."""
        with self._without_error():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, or drop what it holds."""
        with self._without_error():
            self._stream.flush()

    @contextmanager
    def _without_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # The stream keeps what it could not write, and the interpreter writes it again at its end.
            with suppress(io.UnsupportedOperation):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)
            self._failed(error)
