"""Kernel settings that a cluster needs to be higher than they may be, and what they were before."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from e2e.cluster.shell import write

_KERNEL = Path("/proc/sys")
MANY_FILES = {"fs/inotify/max_user_instances": 8192, "fs/inotify/max_user_watches": 524288}


def raise_to(settings: Mapping[str, int], saved: Path) -> None:
    """Raise what is lower, and note in `saved` what it was."""
    before = json.loads(saved.read_text()) if saved.exists() else {}
    for name, value in settings.items():
        path = _KERNEL / name
        if int(path.read_text()) < value:
            before.setdefault(name, path.read_text())
            path.write_text(str(value))
    write(saved, json.dumps(before))


def restore(saved: Path, other: Path) -> None:
    """Put back what `saved` notes. While another cluster is up, whose notes are in `other`, it is left for its end."""
    with contextlib.suppress(FileNotFoundError):
        before = json.loads(saved.read_text())
        if other.exists():
            write(other, json.dumps({**before, **json.loads(other.read_text())}))
        else:
            for name, value in before.items():
                (_KERNEL / name).write_text(value)
        saved.unlink()
