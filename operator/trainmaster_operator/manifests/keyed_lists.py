"""Lists of Kubernetes objects, whose entries have a key of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Object = dict[str, Any]


def joined(given: Iterable[Object] | None, ours: Iterable[Object], key: str = "name") -> list[Object]:
    """`given` and then `ours`, without the given entries whose key one of ours has."""
    added = list(ours)
    taken = {entry[key] for entry in added}
    return [*(entry for entry in given or [] if entry.get(key) not in taken), *added]
