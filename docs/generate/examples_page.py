"""docs/examples.md: the jobs in manifests/examples as one page, since the site has only docs/."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path("manifests") / "examples"

_HEAD = """# Example jobs

<!-- Made from manifests/examples by `make generate`. Don't edit. -->

These are the files of `manifests/examples`. The comment at the beginning of each one says what it shows and how to run
it. Run the commands in a clone of the repository.
"""


def render(root: Path) -> str:
    """Return the text of the page."""
    files = sorted((root / FOLDER).glob("*.yaml"))
    return _HEAD + "".join(f"\n## {file.stem}\n\n```yaml\n{file.read_text().rstrip()}\n```\n" for file in files)
