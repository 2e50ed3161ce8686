"""The imports of this process, in the order in which they begin, and their changes of the environment.

`sys.modules` lists modules in the order in which their imports ended: a package comes after its submodules, although it
ran first. Here the beginning and the end of each import are seen, so each import knows the one that it is part of, and
a changed variable belongs to the import that was running, or to the script. Imports are seen where the import system
loads a module; loaders and specs are not changed.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from typing import Any, Protocol

from trainmaster.rank import variables_read_after_import

AT_LOAD = ("torch", "numpy", "torch.distributed")
"""Modules that a zygote has imported before it knows what a script does to its environment."""

_OWN = ("__main__", "__mp_main__", "trainmaster")


class Watcher(Protocol):
    """The interface of an observer of imports. Its methods must not raise."""

    def begun(self, spec: ModuleSpec) -> None: ...

    def ended(self, spec: ModuleSpec, *, failed: bool) -> None: ...


def watch(watcher: Watcher) -> Callable[[], None]:
    """Let `watcher` observe each module that is loaded from now on, and return a function that ends this.

    Forks of this process are not observed.
    """
    bootstrap: Any = sys.modules["_frozen_importlib"]
    load = bootstrap._load_unlocked
    watching = True

    def _load_unlocked(spec: ModuleSpec) -> Any:
        if not watching:
            return load(spec)
        watcher.begun(spec)
        try:
            module = load(spec)
        except BaseException:
            watcher.ended(spec, failed=True)
            raise
        watcher.ended(spec, failed=False)
        return module

    def end() -> None:
        nonlocal watching
        watching = False
        if bootstrap._load_unlocked is _load_unlocked:
            bootstrap._load_unlocked = load

    # Tracebacks of failing imports leave out the frames of the import system: this one must count as one of them.
    _load_unlocked.__code__ = _load_unlocked.__code__.replace(co_filename=load.__code__.co_filename)
    bootstrap._load_unlocked = _load_unlocked
    os.register_at_fork(after_in_child=end)
    return end


@dataclass(eq=False)
class Import:
    """One module that was loaded. `within` is the import that it is part of."""

    name: str
    within: Import | None
    learnable: bool
    failed: bool = False


class ImportLog:
    """Reports each outermost import of the main program when it has ended, with all imports that were part of it.

    `told` gets [name, name of the import that it was part of or ""] of each module that a zygote may import, in the
    order in which they began. `loaded` gets the name of every module that was loaded. `busy` is called with True when
    the main thread begins an outermost import, and with False when it has ended.
    """

    def __init__(
        self,
        told: Callable[[list[tuple[str, str]]], None],
        loaded: Callable[[str], None],
        busy: Callable[[bool], None],
    ) -> None:
        self.variables: dict[str, str | None] = {}  # that imports have set, or (None) deleted
        self.changed_by_script: set[str] = set()  # variables that an import may read: none after that is learned
        self.forkable = True  # the script changes nothing that torch may read at its import
        self.seconds_ns = 0  # that the main thread has spent in imports
        self._told = told
        self._loaded = loaded
        self._busy = busy
        self._threads = threading.local()
        self._environment: dict[Any, Any] = os.environ._data.copy()  # type: ignore[attr-defined]
        self._began_ns = 0

    def begun(self, spec: ModuleSpec) -> None:
        stack = self._stack()
        self._look(stack)
        if spec.name in AT_LOAD and not all(
            name.startswith(variables_read_after_import.NOT_BY_TORCH) for name in self.changed_by_script
        ):
            self.forkable = False
        if not stack:
            self._threads.seen = []
            if threading.current_thread() is threading.main_thread():
                self._began_ns = time.monotonic_ns()
                self._busy(True)
        entry = Import(spec.name, stack[-1] if stack else None, not self.changed_by_script and is_learnable(spec))
        stack.append(entry)
        self._threads.seen.append(entry)

    def ended(self, spec: ModuleSpec, *, failed: bool) -> None:
        stack = self._stack()
        if not stack:  # it began before the log did
            return
        self._look(stack)
        stack.pop().failed = failed
        if not failed:
            self._loaded(spec.name)
        if stack:
            return
        if threading.current_thread() is threading.main_thread():
            self.seconds_ns += time.monotonic_ns() - self._began_ns
            self._busy(False)
        told = [(entry.name, _container(entry)) for entry in self._threads.seen if _is_reported(entry)]
        if told or not self.forkable:
            self._told(told)

    def overlook(self) -> None:
        """Ignore the latest changes of the environment, which the agent's code made, not the script or an import."""
        self._environment = os.environ._data.copy()  # type: ignore[attr-defined]

    def _stack(self) -> list[Import]:
        """Return the imports that this thread is in, outermost first."""
        stack: list[Import] | None = getattr(self._threads, "stack", None)
        if stack is None:
            stack = self._threads.stack = []
        return stack

    def _look(self, stack: list[Import]) -> None:
        """Attribute the changes since the last look to the innermost import, or to the script."""
        now = os.environ._data  # type: ignore[attr-defined]
        if now == self._environment:
            return
        changes = changes_of(self._environment, now)
        if stack and stack[-1].learnable:
            self.variables |= changes
        else:
            self.changed_by_script |= {
                name for name in changes if not name.startswith(variables_read_after_import.READ_LATER)
            }
        self._environment = now.copy()


def changes_of(before: Mapping[bytes, bytes], after: Mapping[bytes, bytes]) -> dict[str, str | None]:
    """Return the variables that differ, with their new values, or None for a variable that was removed."""
    names = [name for name in {*before, *after} if before.get(name) != after.get(name)]
    return {os.fsdecode(name): os.fsdecode(after[name]) if name in after else None for name in names}


def _is_reported(entry: Import) -> bool:
    """Return True if the zygote is told of this import: a zygote may import it, and it did not fail."""
    return entry.learnable and not entry.failed


def _container(entry: Import) -> str:
    """Return the name of the reported import that this one was part of; "" if there is none."""
    within = entry.within
    while within is not None and not _is_reported(within):
        within = within.within
    return within.name if within is not None else ""


_PACKAGES = ("site-packages", "dist-packages")


def package_folders(path: Sequence[str], given: str) -> list[str]:
    """Return the folders of a `sys.path` into which packages are installed, without those of PYTHONPATH (`given`).

    An interpreter can have several: `uv run --with` and environments with the packages of the system lead to those of
    another environment. A zygote of the same interpreter has them in the same order, but it need not have the
    PYTHONPATH of the ranks: it would find something else under the same name, or nothing.
    """
    apart = {os.path.realpath(folder) for folder in given.split(os.pathsep) if folder}
    return [
        folder for folder in path if os.path.basename(folder) in _PACKAGES and os.path.realpath(folder) not in apart
    ]


_ROOTS = tuple(
    {
        os.path.realpath(path) + os.sep
        for path in (
            *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
            *package_folders(sys.path, os.environ.get("PYTHONPATH", "")),
        )
        if path
    }
)


def is_learnable(spec: ModuleSpec) -> bool:
    """Return True if a module comes from the standard library or site-packages, and not from the user's own code."""
    if spec.name.partition(".")[0] in _OWN:
        return False
    if spec.origin in ("built-in", "frozen"):
        return True
    return bool(spec.origin) and _is_installed(os.path.dirname(spec.origin or ""))


@cache
def _is_installed(folder: str) -> bool:
    return (os.path.realpath(folder) + os.sep).startswith(_ROOTS)
