"""What a Markdown page links to, and which anchors its headings have, on GitHub and on the site."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^( *)(```+|~~~+).*?^ *\2 *$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_INLINE = re.compile(r"(!?)\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'(][^)]*)?\)")
_DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?(\S+?)>?(?:\s|$)", re.MULTILINE)
_TAG = re.compile(r"<(a|img|source)\s[^>]*?(?:href|src|srcset)=[\"']([^\"']+)[\"']", re.IGNORECASE)
_ID = re.compile(r"<\w+\s[^>]*?(?:id|name)=[\"']([^\"']+)[\"']", re.IGNORECASE)
_HEADING = re.compile(r"^(#{1,6}) +(.+?)(?: +#+)? *$", re.MULTILINE)
_LINKED = re.compile(r"!?\[([^\[\]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class Link:
    """A link or picture of a page. `line` is counted from 1."""

    target: str
    line: int
    picture: bool = False


@dataclass(frozen=True)
class Heading:
    level: int
    text: str
    """The heading's text with its Markdown."""


def _blank(found: re.Match[str]) -> str:
    """Only the line breaks of what was found, so that lines keep their numbers."""
    return "\n" * found[0].count("\n")


def without_code(text: str) -> str:
    """Return the page without fenced blocks and comments. Lines keep their numbers."""
    return _COMMENT.sub(_blank, _FENCE.sub(_blank, text))


def links(text: str) -> Iterator[Link]:
    """Yield the links and pictures of a page, those in HTML tags and in definitions (`[name]: target`) included."""
    prose = _CODE.sub(lambda found: "x" + _blank(found), without_code(text))

    def line(found: re.Match[str]) -> int:
        return prose.count("\n", 0, found.start()) + 1

    for found in _INLINE.finditer(prose):
        yield Link(found[2], line(found), picture=found[1] == "!")
    for found in _DEFINITION.finditer(prose):
        yield Link(found[1], line(found))
    for found in _TAG.finditer(prose):
        yield Link(found[2], line(found), picture=found[1].lower() != "a")
    for found in _INLINE.finditer(prose):
        # A picture that is a link: the pattern above sees the outer target only.
        for inner in re.finditer(r"!\[[^\]]*\]\(([^)\s]+)\)", found[0][1:]):
            yield Link(inner[1], line(found), picture=True)


def headings(text: str) -> list[Heading]:
    """Return the headings of a page in their order."""
    return [Heading(len(found[1]), found[2]) for found in _HEADING.finditer(without_code(text))]


def anchors_on_github(text: str) -> set[str]:
    """Return the anchors of a page on GitHub. A heading that comes again gets a number: `limits`, `limits-1`."""
    seen: Counter[str] = Counter()
    found = set(_ID.findall(without_code(text)))
    for heading in headings(text):
        slug = re.sub(r"[^\w\- ]", "", _plain(heading.text).strip().lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def anchors_on_the_site(text: str) -> set[str]:
    """Return the anchors that Python-Markdown makes for the same page, with which both builders of the site work."""
    seen: Counter[str] = Counter()
    found = set(_ID.findall(without_code(text)))
    for heading in headings(text):
        ascii_only = unicodedata.normalize("NFKD", _plain(heading.text)).encode("ascii", "ignore").decode()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())
        found.add(f"{slug}_{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def _plain(heading: str) -> str:
    """The text that a reader sees: no backticks, no emphasis, of a link only its words."""
    return re.sub(r"[`*]", "", _LINKED.sub(r"\1", heading))
