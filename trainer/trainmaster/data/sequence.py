"""A long sequence of tokens, which windows are cut from. It imports neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


class Sequence:
    """The base class of data that is one sequence of tokens and can be read from any position."""

    unit = "tokens"
    alphabet: int | None = None  # tokens that there can be; None: what the model knows

    @property
    def path(self) -> str:
        """Return the path as the job has it."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Return the number of tokens, which must be counted."""
        raise NotImplementedError

    @property
    def counted(self) -> bool:
        """Return True if the number of tokens is known. It is after `count`."""
        return True

    def count(self, folder: Path | None, beat: Callable[[], None]) -> None:
        """Count the tokens, which may take long. What was counted is kept in `folder`, if there is one, and `beat` is
        called again and again. Raises DataError."""

    @property
    def dtype(self) -> str:
        """Return the dtype, in numpy's notation, of the bytes that `read` returns."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """Return a text that changes when the data changes."""
        raise NotImplementedError

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes of the tokens [start, stop). Raises DataError."""
        raise NotImplementedError

    def check(self, vocabulary: int) -> None:
        """Raise DataError if the data has tokens that are not in a vocabulary of this size. Only parts are read."""
        raise NotImplementedError

    def outside(self, number: int, vocabulary: int) -> str:
        """Return a sentence that says why a token cannot be right."""
        if number < 0:
            return f"data.path: {self.path} holds token {number}; tokens are 0 or more"
        return (
            f"data.path: {self.path} holds token {number}, but the model knows {vocabulary}; with its tokenizer's "
            f"vocabulary model.options.vocabulary would be right"
        )
