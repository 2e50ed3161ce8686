"""Seeds of random numbers, as pure functions of the purpose of the numbers."""

from __future__ import annotations

import hashlib


def seed_of(*words: object) -> int:
    """Return a seed of 63 bits for `words`, the same on every machine. Other words have other seeds."""
    key = hashlib.sha256("/".join(["trainmaster", *map(str, words)]).encode()).digest()
    return int.from_bytes(key[:8], "little") >> 1
