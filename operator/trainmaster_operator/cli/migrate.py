"""`trainmaster migrate`: a manifest with the field names of this version."""

from __future__ import annotations

import sys
from pathlib import Path

from trainmaster_operator.api import former
from trainmaster_operator.api.meta import JOB_KIND
from trainmaster_operator.api.problem import shown
from trainmaster_operator.cli import document
from trainmaster_operator.cli.refusal import Refusal


def migrate(file: Path) -> int:
    """Print the manifest to standard output, and what was changed to standard error. Raises Refusal."""
    found = document.load(file)
    kind = found.value.get("kind") if isinstance(found.value, dict) else found.value
    if kind != JOB_KIND:
        raise Refusal(f"{file}: a {JOB_KIND} is expected, not {shown(kind)}")
    value, changes = former.migrated(found.value)
    if not changes:
        sys.stdout.write(file.read_text(encoding="utf-8"))
        sys.stderr.write(f"{file}: nothing has to be changed\n")
        return 0
    sys.stdout.write(document.dump(value))
    for change in changes:
        sys.stderr.write(f"{file}:{found.line(change.path)}: {change}\n")
    sys.stderr.write(f"{file}: comments are not kept\n")
    return 0
