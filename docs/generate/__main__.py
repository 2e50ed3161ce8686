"""Writes the generated pages of docs/: all fields of a job, the API of tm, the example jobs, the list of decisions.

With --check it writes nothing. It looks for generated pages that are stale, links and anchors that lead nowhere, rows
of tables that have another number of cells than their head, and pages of docs/ that mkdocs.yml does not name once. It
prints each, and ends with exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

from docs.generate import api_page, decisions_page, examples_page, fields_page, link_check, nav_check, table_check

ROOT = Path(__file__).parents[2]


def generated(root: Path) -> dict[str, str]:
    """Return the text of each generated page by its path."""
    return {
        "docs/fields.md": fields_page.render(),
        "docs/api.md": api_page.render(root),
        "docs/examples.md": examples_page.render(root),
        "docs/decisions/README.md": decisions_page.render(root),
    }


def stale(root: Path, expected: dict[str, str]) -> Iterator[str]:
    """Yield a sentence and a diff for each page that is not as it would be generated."""
    for page, text in expected.items():
        file = root / page
        current = file.read_text() if file.exists() else ""
        if current != text:
            lines = difflib.unified_diff(current.splitlines(), text.splitlines(), page, "generated", lineterm="")
            yield "\n".join([f"{page} is stale: run `make generate`", *lines])


def problems(root: Path) -> Iterator[str]:
    """Yield all that is wrong with the Markdown files of a repository and with its navigation."""
    pages = link_check.pages(root)
    for page in pages:
        yield from link_check.problems(root, page)
        yield from table_check.problems(page, (root / page).read_text())
    yield from nav_check.problems(root, pages)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if something is wrong")
    options = parser.parse_args(arguments)
    expected = generated(root)
    if not options.check:
        for page, text in expected.items():
            (root / page).write_text(text)
        return 0
    found = [*stale(root, expected), *problems(root)]
    sys.stderr.writelines(f"{problem}\n" for problem in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
