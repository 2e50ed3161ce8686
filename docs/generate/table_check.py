"""Checks that each row of a table has as many cells as its head. A row that is broken over two lines ends the table."""

from __future__ import annotations

import re
from collections.abc import Iterator

from docs.generate import markdown

_RULE = re.compile(r"^ *\|(?: *:?-+:? *\|)+ *$")
_NO_BORDER = re.compile(r"`[^`]*`|\\\|")


def problems(page: str, text: str) -> Iterator[str]:
    """Yield each row that is wrong, as `PAGE:LINE: what is wrong`. `text`: the Markdown of the page."""
    lines = markdown.without_code(text).splitlines()
    for head in (index - 1 for index, line in enumerate(lines) if index > 0 and _RULE.match(line)):
        expected = _cells(lines[head])
        for index in range(head + 1, len(lines)):
            if not lines[index].strip():
                break
            found = _cells(lines[index])
            if found != expected:
                yield f"{page}:{index + 1}: the row has {found} cells, and the head of its table has {expected}"


def _cells(line: str) -> int:
    """Return the number of cells of a row; 0 if the line does not begin and end with the border of a row."""
    row = _NO_BORDER.sub("x", line).strip()
    return row.count("|") - 1 if row.startswith("|") and row.endswith("|") else 0
