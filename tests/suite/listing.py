"""Lists of tests with a reason: the tests that guard releases only, and those that may exceed their budget.

One id or beginning of an id in each line, under a comment that gives the reason. An empty line ends a group:

    # Builds the image without any cache, which takes minutes; the cached build is tested in test_images.py.
    tests/docker/test_cold.py
    tests/docker/test_images.py::test_two_builds_are_equal[cold]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.suite.kinds import file_of


@dataclass(frozen=True)
class Entry:
    """A line of a list: the id or the beginning of ids, the reason above it, and the line's number."""

    prefix: str
    reason: str
    line: int

    def matches(self, test_id: str) -> bool:
        """Tell whether the test is meant: by its whole id, or by its file, folder, class or name without parameters.

        Within the parameters in brackets any beginning is enough.
        """
        if not test_id.startswith(self.prefix):
            return False
        following = test_id[len(self.prefix) :]
        return not following or "[" in self.prefix or self.prefix[-1] == "/" or following.startswith(("[", "::", "/"))


def parse(text: str) -> list[Entry]:
    """Return the entries of a list; those without a comment above them have an empty reason."""
    entries: list[Entry] = []
    reason: list[str] = []
    in_comment = False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("#"):
            reason = [*(reason if in_comment else []), stripped.lstrip("# ")]
            in_comment = True
            continue
        in_comment = False
        if stripped:
            entries.append(Entry(stripped, " ".join(reason).strip(), number))
        else:
            reason = []
    return entries


def matcher(entries: Iterable[Entry]) -> Callable[[str], bool]:
    """Return a function that tells whether any entry matches a test id. It compares an id with the entries of its file
    and with those of folders only."""
    of_files: dict[str, list[Entry]] = defaultdict(list)
    of_folders: list[Entry] = []
    for entry in entries:
        file = file_of(entry.prefix)
        if file.endswith(".py"):
            of_files[file].append(entry)
        else:
            of_folders.append(entry)

    def is_listed(test_id: str) -> bool:
        near = of_files.get(file_of(test_id), ())
        return any(entry.matches(test_id) for found in (near, of_folders) for entry in found)

    return is_listed


def without_reason(entries: Iterable[Entry]) -> list[str]:
    """Return a sentence for each entry that no comment explains."""
    return [
        f"line {entry.line}: {entry.prefix} has no reason; write it as a comment above the line"
        for entry in entries
        if not entry.reason
    ]


def without_test(entries: Iterable[Entry], test_ids: Iterable[str]) -> list[str]:
    """Return a sentence for each entry that matches none of the tests."""
    known = list(test_ids)
    return [
        f"line {entry.line}: {entry.prefix} matches no test; remove it"
        for entry in entries
        if not any(entry.matches(test_id) for test_id in known)
    ]
