"""docs/decisions/README.md: the list of all decisions, from their titles."""

from __future__ import annotations

from pathlib import Path

from docs.generate import markdown

FOLDER = Path("docs") / "decisions"
PAGE = "README.md"

_HEAD = """# Why things are as they are

<!-- Made from the titles of the decisions by `make generate`. Don't edit. -->

Each page tells of one decision that lasts: what the problem was, what was decided, and what follows from it. The
[glossary](../glossary.md) explains the words.

"""


def render(root: Path) -> str:
    """Return the text of the page."""
    pages = sorted(page for page in (root / FOLDER).glob("*.md") if page.name != PAGE)
    return _HEAD + "".join(f"- [{_title(page)}]({page.name})\n" for page in pages)


def _title(page: Path) -> str:
    return next((heading.text for heading in markdown.headings(page.read_text()) if heading.level == 1), page.stem)
