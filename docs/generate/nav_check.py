"""Checks the navigation in mkdocs.yml: each page of docs/ is in one of the three paths, once, and has a title."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from docs.generate import markdown
from docs.generate.link_check import DOCS

CONFIG = "mkdocs.yml"
PATHS = ("Use it", "Operate a cluster", "Contribute")
START = "index.md"


def problems(root: Path, pages: list[str]) -> Iterator[str]:
    """Yield what is wrong with the navigation. `pages`: all Markdown files, as paths from the root."""
    config = yaml.safe_load((root / CONFIG).read_text())
    nav = config.get("nav") or []
    sections = [name for entry in nav if isinstance(entry, dict) for name, below in entry.items() if _is_path(below)]
    if sections != list(PATHS):
        yield f"{CONFIG}: nav has the paths {', '.join(sections)}; {', '.join(PATHS)} are expected"
    count = Counter(_entries(nav))
    inside = {page.removeprefix(f"{DOCS}/") for page in pages if page.startswith(f"{DOCS}/")}
    yield from (f"{CONFIG}: {page} is {number} times in nav" for page, number in count.items() if number > 1)
    yield from (f"{CONFIG}: nav has {page}, but there is no {DOCS}/{page}" for page in sorted(count.keys() - inside))
    yield from (f"{DOCS}/{page}: the page is in no path of {CONFIG}" for page in sorted(inside - count.keys()))
    for page in sorted(inside):
        text = (root / DOCS / page).read_text()
        levels = [heading.level for heading in markdown.headings(text)]
        # Below a comment a builder doesn't find the title: the navigation would have the name of the file.
        if not text.startswith("# ") or levels.count(1) != 1:
            yield f"{DOCS}/{page}: a page begins with its title, `# …`, and has no other heading of that level"


def _is_path(below: Any) -> bool:
    return isinstance(below, list)


def _entries(nav: Any) -> Iterator[str]:
    """The files of all entries, with or without a title, at any depth."""
    if isinstance(nav, str):
        yield nav
    for below in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _entries(below)
