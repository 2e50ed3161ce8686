"""Lines out of a stream of chunks."""

from __future__ import annotations


class LineSplitter:
    """Costs what the bytes cost, however many chunks a line comes in."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of the line that hasn't ended

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this chunk, without their ends."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts = []
        if rest:
            self._parts.append(rest)
        return lines

    @property
    def unfinished(self) -> bool:
        """A line has begun and not ended."""
        return bool(self._parts)
