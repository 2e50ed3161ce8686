"""Lists in Kubernetes objects whose entries have a key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Object = dict[str, Any]


def joined(given: Iterable[Object] | None, ours: Iterable[Object], key: str = "name") -> list[Object]:
    """Return the entries of `given`, without those whose key is also in `ours`, followed by `ours`."""
    added = list(ours)
    taken = {entry[key] for entry in added}
    return [*(entry for entry in given or [] if entry.get(key) not in taken), *added]
