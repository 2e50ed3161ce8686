"""What git knows of the checkout: which files there are, what changed since a revision, and texts of the past."""

from __future__ import annotations

import hashlib
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath

from tests.suite.reach.recordfile import Text

ROOT = Path(__file__).resolve().parents[3]


class GitError(Exception):
    """git can't answer: says what it was asked and what it said."""


class Checkout:
    """The working tree at `root`, beside the revision `base`. Paths are relative to the root."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self._texts: dict[str, str | None] = {}

    def git(self, *arguments: str) -> str:
        """Return what a git command prints. Raises GitError."""
        done = subprocess.run(["git", "-C", str(self.root), *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise GitError(f"git {' '.join(arguments)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
        return done.stdout

    def merge_base(self, branch: str = "main") -> str:
        """Return the commit at which HEAD left the branch. Raises GitError."""
        return self.git("merge-base", "HEAD", branch).strip()

    def resolve(self, revision: str) -> str:
        """Return the commit that a revision means. Raises GitError."""
        return self.git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").strip()

    @cached_property
    def files(self) -> list[str]:
        """All files that git tracks or would track, as they are in the working tree."""
        listed = self.git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        return sorted(path for path in {*listed} if path and (self.root / path).is_file())

    @cached_property
    def blobs(self) -> dict[str, str]:
        """The hash of each file's content in the working tree."""
        return {path: blob_of(self.bytes_now(path)) for path in self.files}

    def blobs_at(self, revision: str) -> dict[str, str]:
        """Return the hash of each file's content in a commit. Raises GitError."""
        found = {}
        for line in self.git("ls-tree", "-r", "-z", revision).split("\0"):
            about, _, path = line.partition("\t")
            if path:
                found[path] = about.split()[2]
        return found

    def bytes_now(self, path: str) -> bytes:
        """Return what a file holds."""
        return (self.root / path).read_bytes()

    def text_now(self, path: str) -> str | None:
        """Return the text of a file; None if there is no such file, or it is no text."""
        try:
            return self.bytes_now(path).decode()
        except (OSError, UnicodeDecodeError):
            return None

    def text_of(self, blob: str) -> str | None:
        """Return the text that has this hash; None if this clone of the repository doesn't hold it."""
        if blob not in self._texts:
            found = subprocess.run(["git", "-C", str(self.root), "cat-file", "blob", blob], capture_output=True)
            try:
                self._texts[blob] = found.stdout.decode() if found.returncode == 0 else None
            except UnicodeDecodeError:
                self._texts[blob] = None
        return self._texts[blob]


def blob_of(content: bytes) -> str:
    """Return the hash that git gives a content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def listings(files: Iterable[str]) -> dict[str, str]:
    """Return a hash of the names in each folder, by the folder's path; the root is `.`."""
    names: dict[str, set[str]] = defaultdict(set)
    for file in files:
        path = PurePosixPath(file)
        for inner, folder in zip([path, *path.parents], path.parents, strict=False):
            names[str(folder)].add(inner.name)
    return {folder: blob_of("\n".join(sorted(held)).encode()) for folder, held in names.items()}


def texts_of(paths: Iterable[str], blobs: Mapping[str, str]) -> frozenset[Text]:
    """Return the versions of the files at `paths`."""
    return frozenset(Text(path, blobs[path]) for path in paths if path in blobs)
