"""Kernel settings that a cluster needs to be higher than they may be, and what they were before."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from e2e.cluster.shell import write

MANY_FILES = {"fs/inotify/max_user_instances": 8192, "fs/inotify/max_user_watches": 524288}


def raise_to(settings: Mapping[str, int], saved: Path) -> None:
    """Raise what is lower, and note in `saved` what it was."""
    before = json.loads(saved.read_text()) if saved.exists() else {}
    for name, value in settings.items():
        path = Path("/proc/sys", name)
        if int(path.read_text()) < value:
            before.setdefault(name, path.read_text())
            path.write_text(str(value))
    write(saved, json.dumps(before))


def restore(saved: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        for name, value in json.loads(saved.read_text()).items():
            Path("/proc/sys", name).write_text(value)
        saved.unlink()
