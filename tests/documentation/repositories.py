"""Small repositories for tests of what `python -m docs.generate --check` finds."""

from __future__ import annotations

import subprocess
from pathlib import Path

NAV = """
nav:
  - index.md
  - Use it: [{Steps: [a.md]}]
  - Operate a cluster: [b.md]
  - Contribute: [{A title: c/d.md}]
"""


def make(root: Path, files: dict[str, str]) -> None:
    """Write a repository with four good pages, in which `files` replace or add some."""
    pages = {f"docs/{name}": "# A title\n\n## A part\n" for name in ("index.md", "a.md", "b.md", "c/d.md")}
    for name, text in {
        **pages,
        "README.md": "# Read me\n",
        "mkdocs.yml": NAV,
        ".gitignore": "kept/\n",
        **files,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
