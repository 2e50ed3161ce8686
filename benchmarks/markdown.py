"""Tables and blocks of Markdown pages that are made from results."""

from __future__ import annotations

import re
import statistics
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_BLOCK = re.compile(r"(<!-- benchmarks\.pages: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def machine(facts: dict[str, Any]) -> str:
    return f"Machine: {facts['cpu']}, {facts['cores']} cores, torch {facts['torch']}."


def machines(rows: list[dict[str, Any]]) -> str:
    """Return a sentence for each machine that these rows were made on."""
    return " ".join(dict.fromkeys(machine(row["machine"]) for row in rows))


def busy(rows: list[dict[str, Any]]) -> str:
    """Return a sentence about how busy the machine was before these runs; "" if it was nearly idle."""
    most = max(row["busy_cores_before"] for row in rows)
    return f"Before a run, up to {most:.1f} cores of the machine were busy with other programs. " if most > 0.5 else ""


def spread(seconds: Sequence[float], none: str) -> str:
    """Return the median of times in seconds, with their range and number; `none` if there is no time."""
    if not seconds:
        return none
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), {len(seconds)}"


def wrapped(text: str) -> list[str]:
    """Return a paragraph in lines of the width of our pages."""
    return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)


def fill(text: str, blocks: Mapping[str, Callable[[], Iterator[str]]]) -> str:
    """Return a page with what stands between `<!-- benchmarks.pages: NAME -->` and `<!-- end -->` made anew.

    Raises ValueError if a page has no block, or one of an unknown name.
    """

    def filled(found: re.Match[str]) -> str:
        if found[2] not in blocks:
            raise ValueError(f"no block is called {found[2]}; there are {', '.join(blocks)}")
        return f"{found[1]}" + "".join(f"{line}\n" for line in blocks[found[2]]()) + found[3]

    made, count = _BLOCK.subn(filled, text)
    if not count:
        raise ValueError("there is no `<!-- benchmarks.pages: NAME -->` … `<!-- end -->` to fill")
    return made
