"""Splits a stream of chunks into lines."""

from __future__ import annotations


class LineSplitter:
    """Collects chunks and returns lines. The cost is proportional to the bytes, however many chunks a line has."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # The parts of the unfinished line.

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in this chunk, without their line ends."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts = []
        if rest:
            self._parts.append(rest)
        return lines

    @property
    def unfinished(self) -> bool:
        """True if a line has begun and not ended."""
        return bool(self._parts)
