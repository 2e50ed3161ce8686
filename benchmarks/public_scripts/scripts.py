"""A public script as an entry of a table: where it comes from, how it is started small, and how its end is read."""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class BadSources(Exception):
    """A snapshot lacks a file that an entry of the table needs, or has another text where one is to be changed."""


@dataclass(frozen=True)
class Change:
    """A text of a file that is replaced, wherever it stands there, and why the script can't run as it is."""

    file: str
    old: str
    new: str
    why: str


class End(Protocol):
    """How a run's end is read."""

    def read(self, folder: Path, output: str) -> str:
        """Return the end of a run in `folder` that has printed `output`; "" if there is none."""


@dataclass(frozen=True)
class Weights(End):
    """A digest of all tensors below `key` in the newest file that matches `pattern`."""

    pattern: str
    key: str = ""

    def read(self, folder: Path, output: str) -> str:
        files = sorted(folder.glob(self.pattern), key=lambda path: path.stat().st_mtime_ns)
        return digest(load_tensors(files[-1]), self.key) if files else ""


@dataclass(frozen=True)
class Lines(End):
    """The last `count` matches of `pattern` in what rank 0 has printed, without regard to their order if `sort`."""

    pattern: str
    count: int = 1
    sort: bool = False

    def read(self, folder: Path, output: str) -> str:
        found = [match.group(0).strip() for match in re.finditer(self.pattern, output)][-self.count :]
        return " | ".join(sorted(found) if self.sort else found)


@dataclass(frozen=True)
class PublicScript:
    """One script of the table.

    folder: what of the repository is copied to where it runs. words: its arguments, the script itself first.
    ranks: processes of the launcher. prepare: makes data in the copied folder, in the format that the script reads.
    restart: arguments that are added from the second round on, for scripts that resume by an option. kill_step: rank
    `victim` is killed right after this step of its first round. pace_s: pause after each step, so that a run with a
    kill lasts as long as runs do for which restarts matter. rate: finds the tokens per second that it prints.
    why: what keeps a killed run from the end of a calm one.
    """

    name: str
    repository: str
    commit: str
    folder: str
    words: tuple[str, ...]
    end: End
    ranks: int = 2
    changes: tuple[Change, ...] = ()
    prepare: Callable[[Path], None] | None = None
    restart: tuple[str, ...] = ()
    victim: int | None = 1
    kill_step: int = 5
    pace_s: float = 0.0
    limit_s: float = 400.0
    within: str = "."
    variables: Mapping[str, str] = field(default_factory=dict)
    hook: str = ""
    rate: str = ""
    why: str = ""


def unpack(script: PublicScript, sources: Path, folder: Path) -> Path:
    """Copy a script from its snapshot into `folder`, change it, make its data; return the folder that it runs in.

    Raises BadSources if the snapshot doesn't have what the entry names.
    """
    import shutil

    source = sources / script.repository / script.folder
    if not source.is_dir():
        raise BadSources(f"{script.name}: {source} is missing; it should hold {script.folder} of {script.repository}")
    shutil.copytree(source, folder, symlinks=True, dirs_exist_ok=True)
    for change in script.changes:
        path = folder / change.file
        text = path.read_text() if path.is_file() else ""
        if change.old not in text:
            raise BadSources(f"{script.name}: {source / change.file} has no {change.old!r}: is it {script.commit}?")
        path.write_text(text.replace(change.old, change.new))
    if script.prepare is not None:
        script.prepare(folder)
    return folder / script.within


def load_tensors(path: Path) -> Any:
    """Return what a file of weights holds."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    import torch

    return torch.load(path, map_location="cpu", weights_only=False)  # made by the run itself, on this machine


def digest(state: Any, key: str = "") -> str:
    """Return a digest of the names and bytes of all tensors in nested dicts and lists, below `key` if one is given."""
    for part in filter(None, key.split("/")):
        state = state[part]
    found = hashlib.sha256()
    for name, tensor in sorted(_tensors(state)):
        found.update(name.encode() + tensor.detach().contiguous().flatten().view(-1).numpy().tobytes())
    return found.hexdigest()[:16]


def _tensors(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if hasattr(state, "detach"):
        yield name, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from _tensors(value, f"{name}/{key}")
    elif isinstance(state, list | tuple):
        for number, value in enumerate(state):
            yield from _tensors(value, f"{name}/{number}")


def check_sources(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Exit with a sentence if --sources is no folder."""
    if not given.sources.is_dir():
        parser.error(f"--sources {given.sources}: there is no such folder")


def check_chosen(parser: argparse.ArgumentParser, given: argparse.Namespace, names: Collection[str]) -> None:
    """Exit with a sentence if --sources is no folder, or if --only has a name that is not among `names`."""
    check_sources(parser, given)
    for name in given.only or []:
        if name not in names:
            parser.error(f"--only {name}: the scripts are {', '.join(names)}")
