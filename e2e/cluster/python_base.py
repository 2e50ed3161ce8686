"""The root of a plain Python image, made once from Debian's packages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from e2e.cluster.places import CACHE
from e2e.cluster.shell import discard, run, say

SUITE = "bookworm"
_PACKAGES = ("python3", "python3-pip", "ca-certificates")
_WASTE = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/log")


def folder() -> Path:
    """Return a folder that holds the root as base.tar. Its name tells what the root is made of."""
    key = hashlib.sha256(repr((SUITE, _PACKAGES, _WASTE)).encode()).hexdigest()[:16]
    target = CACHE / f"python-{SUITE}-{key}"
    if not (target / "base.tar").exists():
        say(f"making a Python base from Debian {SUITE}: about a minute")
        for old in CACHE.glob("python-*"):
            discard(old)
        root = target / "root"
        root.mkdir(parents=True)
        debootstrap(root, _PACKAGES, target / "debootstrap.log")
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        partial = target / "base.tar.partial"
        waste = [f"--exclude=./{folder}/*" for folder in _WASTE]
        run("tar", "--create", "--numeric-owner", *waste, "--file", partial, "--directory", root, ".")
        partial.rename(target / "base.tar")
        discard(root)
    return target


def debootstrap(root: Path, packages: Iterable[str], log: Path) -> None:
    """Install Debian's smallest system and some packages below `root`."""
    words = ("--variant=minbase", f"--include={','.join(packages)}", SUITE, str(root), *_mirror())
    run("debootstrap", *words, log=log)


def _mirror() -> list[str]:
    """Where this machine gets the suite from; without an answer debootstrap uses its own."""
    words = ("indextargets", "--format", "$(SITE)", "Created-By: Packages", f"Codename: {SUITE}")
    return run("apt-get", *words, check=False).splitlines()[:1]
