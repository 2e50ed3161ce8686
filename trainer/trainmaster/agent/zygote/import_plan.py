"""Which modules a zygote imports in advance, and in which order: decided from what ranks say of their imports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

MOST_RETRIES = 12
"""Number of times that a zygote is tried again for one list of imports, without the module that spoilt the last one."""


class Imported(NamedTuple):
    """A module that a rank has imported. `within` is the import that it was part of, or ""."""

    name: str
    within: str


def join(known: Iterable[Imported], told: Iterable[Imported]) -> list[Imported]:
    """Return what is known and, after it, what is told and wasn't known, each name once."""
    found: dict[str, Imported] = {}
    for imported in (*known, *told):
        found.setdefault(imported.name, imported)
    return list(found.values())


def choose(imports: Sequence[Imported], barred: Collection[str]) -> list[str]:
    """Return the names to import, in order, so that no barred module comes along.

    An import that had a barred one as a part of it is left out too, and so is every module of a package that is left
    out, since importing it imports the package. Whatever else those imports brought along is imported on its own.
    """
    within = {imported.name: imported.within for imported in imports}
    left_out: set[str] = set(barred)
    before = -1
    while len(left_out) > before:
        before = len(left_out)
        for name, container in within.items():
            if name not in left_out and left_out.isdisjoint(packages(name)):
                continue
            left_out.add(name)
            while container and container not in left_out:
                left_out.add(container)
                container = within.get(container, "")
    return [name for name in within if name not in left_out]


def blame(imports: Sequence[Imported], barred: Collection[str], stack: Sequence[str]) -> str:
    """Return the module to bar for a harm during the imports of `stack` (the innermost first): the innermost one that
    was to be imported. "" if none was."""
    chosen = set(choose(imports, barred))
    return next((name for name in stack if name in chosen), "")


def packages(name: str) -> list[str]:
    """Return the packages that contain a module: those of "a.b.c" are "a.b" and "a"."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]
