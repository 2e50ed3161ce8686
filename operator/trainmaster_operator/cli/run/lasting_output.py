"""The output of a run, which may last longer than its reader, as with `| head`.

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


@contextmanager
def lasting(out: Path) -> Iterator[None]:
    """Let the readers of standard output and standard error end without an error here. `out`: the output folder of the
    run, which standard error names if standard output has lost its reader."""
    stdout, stderr = sys.stdout, sys.stderr

    def say_so() -> None:
        sys.stderr.write(
            "trainmaster: nothing reads the output any more; the run continues, and "
            f"`trainmaster status {out} --watch` shows it\n"
        )

    sys.stdout = cast("TextIO", _Lasting(stdout, say_so))
    sys.stderr = cast("TextIO", _Lasting(stderr, lambda: None))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = stdout, stderr


class _Lasting:
    """A stream that writes to nowhere once its reader has gone. `gone`: called once, when that is noticed."""

    def __init__(self, stream: TextIO, gone: Callable[[], None]) -> None:
        self._stream, self._gone = stream, gone

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, or drop it."""
        with self._without_reader():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, or drop what it holds."""
        with self._without_reader():
            self._stream.flush()

    @contextmanager
    def _without_reader(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            # The stream keeps what it could not write, and the interpreter writes it again at its end.
            with suppress(io.UnsupportedOperation):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)
            self._gone()
