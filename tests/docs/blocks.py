"""The blocks of code that the pages show, with their commands, and what the marks above them say.

A mark is an HTML comment on a line of its own, directly above the block. CONTRIBUTING.md lists the kinds. This module
only reads: whether a block is right, and whether a mark still applies, is for the tests to decide.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.suite import sources

ROOT = Path(__file__).parents[2]

KINDS = {
    # kind: whether it needs a value, may have one (None), or has none
    "cluster": None,
    "long": True,
    "session": True,
    "file": True,
    "source": True,
    "illustrative": True,
    "exact": False,
    "claim": True,
}
"""The kinds of marks. `claim` marks a paragraph (claims/listed.py); all others mark a block."""

_MARK = re.compile(r"^<!-- ([a-z]+)(?:: (.+?))? -->$")
_FENCE = re.compile(r"^```(\w*)$")


class PageError(Exception):
    """What is wrong with a page, as one sentence with file and line."""


@dataclass(frozen=True)
class Mark:
    kind: str
    value: str
    line: int


@dataclass(frozen=True)
class Command:
    """A command line that a page shows, and the lines of output that it shows below."""

    text: str
    output: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """The words as a shell sees them. The comment behind the command is not among them."""
        return shlex.split(self.text, comments=True)

    def begins_with(self, prefix: str) -> bool:
        beginning = prefix.split()
        return self.words[: len(beginning)] == beginning


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. `line` is that of the fence, counted from 1."""

    page: str
    line: int
    language: str
    text: str
    marks: tuple[Mark, ...]

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    def values(self, kind: str) -> list[str]:
        """Return the values of all marks of this kind."""
        return [mark.value for mark in self.marks if mark.kind == kind]

    def has(self, kind: str) -> bool:
        return bool(self.values(kind))

    @property
    def session(self) -> str:
        """The name of the session that the block belongs to; empty if it belongs to none."""
        return next(iter(self.values("session")), "")

    @cached_property
    def commands(self) -> tuple[Command, ...]:
        """The commands of a console block; other blocks have none. Raises PageError."""
        return tuple(_commands(self)) if self.language == "console" else ()

    def marked(self, kind: str) -> Iterator[tuple[Command, str]]:
        """Yield the commands that a mark of this kind is about, each with the mark's value."""
        for value in self.values(kind):
            prefix = value.partition(";")[0]
            for command in self.commands:
                if command.begins_with(prefix):
                    yield command, value

    @property
    def runnable(self) -> list[Command]:
        """The commands that can be run on this machine in a short time."""
        if self.has("illustrative"):
            return []
        left_out = [command for kind in ("cluster", "long") for command, _ in self.marked(kind)]
        return [command for command in self.commands if command not in left_out]


def _commands(block: Block) -> Iterator[Command]:
    """The commands of a console block: lines that begin with `$ `, which a backslash continues."""
    text = ""
    output: list[str] = []
    for line in block.text.splitlines():
        if text.endswith("\\"):
            text = text[:-1] + line.strip()
        elif line.startswith("$ "):
            if text:
                yield Command(text, tuple(output))
            text, output = line[2:], []
        elif text:
            output.append(line)
        else:
            raise PageError(f"{block.where}: a console block begins with a command, `$ ...`")
    if not text:
        raise PageError(f"{block.where}: a console block has at least one command, `$ ...`")
    yield Command(text, tuple(output))


def read(text: str, page: str) -> tuple[list[Block], list[Mark]]:
    """Return the blocks of a page, and the marks that stand above none: those of claims.

    Raises PageError for a mark that isn't known, lacks its value or stands in a wrong place.
    """
    blocks: list[Block] = []
    claims: list[Mark] = []
    above: list[Mark] = []
    lines, number = text.splitlines(), 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if found := _MARK.match(line):
            mark = Mark(found[1], found[2] or "", number)
            if found[1] in KINDS:
                _check(mark, page)
                (claims if mark.kind == "claim" else above).append(mark)
                continue
            if number < len(lines) and _FENCE.match(lines[number]):
                raise PageError(f"{page}:{number}: {mark.kind} is no mark; there are {', '.join(KINDS)}")
        if fence := _FENCE.match(line):
            end = next((n for n in range(number, len(lines)) if lines[n] == "```"), None)
            if end is None:
                raise PageError(f"{page}:{number}: the block that begins here has no end")
            blocks.append(Block(page, number, fence[1], "\n".join(lines[number:end]), tuple(above)))
            above, number = [], end + 1
        elif above:
            raise PageError(f"{page}:{above[-1].line}: the mark `{above[-1].kind}` stands directly above no block")
    if above:
        raise PageError(f"{page}:{above[-1].line}: the mark `{above[-1].kind}` stands directly above no block")
    return blocks, claims


def _check(mark: Mark, page: str) -> None:
    needed = KINDS[mark.kind]
    if needed and not mark.value:
        raise PageError(f"{page}:{mark.line}: the mark `{mark.kind}` needs a value: <!-- {mark.kind}: ... -->")
    if needed is False and mark.value:
        raise PageError(f"{page}:{mark.line}: the mark `{mark.kind}` has no value: <!-- {mark.kind} -->")


def pages() -> list[str]:
    """Return the pages that people read, as paths from the root of the repository."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("charts/*/README.md"), *(ROOT / "docs").rglob("*.md")]
    # The script that draws the pictures of the documentation installs packages, which have pages of their own.
    return sorted(str(page.relative_to(ROOT)) for page in found if "node_modules" not in page.parts)


def all_blocks() -> list[Block]:
    """Return the blocks of all pages. Raises PageError."""
    return [block for page in pages() for block in read((ROOT / page).read_text(), page)[0]]


def prose(text: str) -> str:
    """Return a page without its blocks and comments, each paragraph on one line."""
    without = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    without = re.sub(r"<!--.*?-->", "", without, flags=re.DOTALL)
    return re.sub(r"(?<=\S)\n(?=[^\s|#>*-])", " ", without)


def named_tests() -> set[str]:
    """Return the names of all tests of the repository, those on a cluster among them."""
    return {name for source in sources.read(ROOT).values() for name in source.functions}
