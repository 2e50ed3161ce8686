"""Checks that links within the repository lead somewhere, on GitHub and on the site.

The site has only the files of docs/. So a page of docs/ links to nothing outside of that folder: it names such a file
by its path in the repository, in code. Addresses on the network are not looked up.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from docs.generate import markdown
from docs.generate.markdown import Link

DOCS = "docs"
_ADDRESS = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


def pages(root: Path) -> list[str]:
    """Return the Markdown files of a repository, also new ones, without those that git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "--", "*.md"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
    return sorted(page for page in listed if (root / page).is_file())


def problems(root: Path, page: str) -> Iterator[str]:
    """Yield each link of a page that leads nowhere, as `PAGE:LINE: what is wrong`."""
    for link in markdown.links((root / page).read_text()):
        for problem in _wrong(root, page, link):
            yield f"{page}:{link.line}: {link.target}: {problem}"


def _wrong(root: Path, page: str, link: Link) -> Iterator[str]:
    on_the_site = page.startswith(f"{DOCS}/")
    if _ADDRESS.match(link.target):
        if on_the_site and link.picture:
            yield f"a page of the site asks the network for nothing: put the picture into {DOCS}/pictures"
        return
    path, _, anchor = unquote(link.target).partition("#")
    if path.startswith("/"):
        yield "a link within the repository is relative to its page"
        return
    target = os.path.normpath(Path(page).parent / path) if path else page
    file = root / target
    if target.startswith("..") or not file.exists():
        yield "there is no such file"
        return
    if on_the_site and not target.startswith(f"{DOCS}/"):
        yield f"the site has only {DOCS}/: name the file in code instead, `{target}`"
    elif on_the_site and file.is_dir():
        yield "the site has no page for a folder: link to a page in it"
    elif anchor and file.suffix != ".md":
        yield f"{target} is no page, so it has no anchors"
    elif anchor:
        text = file.read_text()
        if anchor not in markdown.anchors_on_github(text):
            yield f"{target} has no such heading"
        elif target.startswith(f"{DOCS}/") and anchor not in markdown.anchors_on_the_site(text):
            yield f"the heading in {target} has another anchor on the site: change its punctuation"
