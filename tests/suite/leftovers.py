"""Puts the state of the process back that a test leaves changed, and fails the test with --fail-on-leftovers.

pytest-xdist deals files to workers in an order that differs between machines, so what one test leaves would make
another one fail now and then, in a run that nobody can repeat.

A library may change the state when it is imported, and which test is the first to import it depends on that order, too:
a test that imports a library first does not fail, but the state is put back.

A test is compared before its set-up and after its teardown: `state()` says what is looked at. A fixture of a wider
scope may change the state for as long as it lives. So what changes during its set-up is expected to stay, and what was
there before is expected again once it has ended; the last test that uses the fixture fails if it isn't.
"""

from __future__ import annotations

import gc
import itertools
import locale
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pytest

IGNORED = frozenset({b"PYTEST_CURRENT_TEST"})
"""Variables that pytest itself sets."""

OF_LIBRARIES = frozenset(
    {b"KMP_DUPLICATE_LIB_OK", b"KMP_INIT_AT_FORK", b"TORCHINDUCTOR_CACHE_DIR", b"TRITON_CACHE_DIR"}
)
"""Variables that scikit-learn sets when it is imported, and torch with its compiler, which sets them late. They are put
back, and no test fails because of them."""

SIGNALS = tuple(getattr(signal, f"SIG{name}") for name in ("TERM", "INT", "HUP", "CHLD", "ALRM", "USR1", "USR2"))
OURS_AND_PYTHONS = sys.stdlib_module_names | {
    *("benchmarks", "docs", "e2e", "simulation", "tests", "trainmaster", "trainmaster_operator")
}

UNKNOWN = object()
"""The value of what can't be read, e.g. of torch before something has imported it."""


class State(NamedTuple):
    """What a test must leave as it was: the environment, and values by the names of `PUT_BACK`."""

    environment: dict[bytes, bytes]
    values: dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """One variable or value that differs between two states; None: the variable isn't set."""

    name: str | bytes
    before: Any
    after: Any

    def __str__(self) -> str:
        if isinstance(self.name, str):
            return f"left {self.name} as {self.after!r}; it was {self.before!r}"
        name, before, after = (_text(word) for word in (self.name, self.before, self.after))
        if self.after is None:
            return f"removed the variable {name} from the environment; it was {before!r}"
        was = "not set" if before is None else repr(before)
        return f"left the variable {name} in the environment: {after!r}; it was {was}"

    def put_back(self) -> None:
        """Set what differs to its value before."""
        if isinstance(self.name, str):
            PUT_BACK[self.name](self.before)
        elif self.before is None:
            os.environb.pop(self.name, None)
        else:
            os.environb[self.name] = self.before


def state() -> State:
    """Read the state of this process, in some 20 microseconds.

    Objects that the collector has frozen are not counted: that walks over all of them.
    """
    # A copy of the mapping decodes every name and value, which takes longer than all the rest.
    environment = vars(os.environ)["_data"].copy()
    values: dict[str, Any] = {
        "the working directory": _working_directory(),
        "the umask": _umask(),
        "tempfile.tempdir": tempfile.tempdir,
        "sys.path": tuple(sys.path),
        "the signal handlers": tuple(map(signal.getsignal, SIGNALS)),
        "the blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "the CPUs of the process": os.sched_getaffinity(0),
        "whether the garbage collector is enabled": gc.isenabled(),
        "the garbage collector's thresholds": gc.get_threshold(),
        "sys.excepthook": sys.excepthook,
        "sys.unraisablehook": sys.unraisablehook,
        "threading.excepthook": threading.excepthook,
        "the root logger's handlers": _handlers(),
        "the root logger's level": logging.root.level,
        "the level that logging.disable() sets": logging.root.manager.disable,
        "the locale": locale.setlocale(locale.LC_ALL),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        values |= {
            "torch's default dtype": torch.get_default_dtype(),
            "torch's default device": torch.empty(0).device,
            "torch's deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            "torch's number of threads": torch.get_num_threads(),
            "torch's grad mode": torch.is_grad_enabled(),
        }
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None:
            values["torch's default process group"] = distributed.is_initialized()
    return State(environment, values)


def differences(before: State, after: State) -> list[Difference]:
    """Return what differs between two states; what can't be read in one of them doesn't."""
    if before == after:
        return []
    return [*_environment(before.environment, after.environment), *_values(before.values, after.values)]


class Leftovers:
    """The plugin that compares the states."""

    def __init__(self, fails: bool) -> None:
        self._fails = fails
        self._expected: State | None = None
        self._modules = 0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        self._modules = len(sys.modules)
        self._expected = state()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        changes: list[Difference] = []
        # Finalizers run in the reverse order: the fixture's own has run before this one.
        fixturedef.addfinalizer(partial(self._expect, changes, ended=True))
        before = state()
        try:
            return (yield)
        finally:
            changes += differences(before, state())
            self._expect(changes, ended=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None]:
        try:
            yield
        except BaseException as error:
            for difference in self._put_back():
                error.add_note(f"The test also {difference}.")
            raise
        found = [difference for difference in self._put_back() if difference.name not in OF_LIBRARIES]
        if found and self._fails and not _has_imported_a_library(self._modules):
            pytest.fail(f"The test {', and '.join(map(str, found))}.", pytrace=False)

    def _expect(self, changes: list[Difference], ended: bool) -> None:
        if self._expected is None:
            return
        for change in changes:
            value = change.before if ended else change.after
            if isinstance(change.name, str):
                self._expected.values[change.name] = value
            elif value is None:
                self._expected.environment.pop(change.name, None)
            else:
                self._expected.environment[change.name] = value

    def _put_back(self) -> list[Difference]:
        if self._expected is None:
            return []
        found = differences(self._expected, state())
        for difference in found:
            difference.put_back()
        self._expected = None
        return found


def _has_imported_a_library(known: int) -> bool:
    """Return True if a module that is neither ours nor Python's was imported after the first `known` modules."""
    new = itertools.islice(list(sys.modules), known, None)
    return any(name.partition(".")[0] not in OURS_AND_PYTHONS for name in new)


def _environment(before: Mapping[bytes, bytes], after: Mapping[bytes, bytes]) -> Iterator[Difference]:
    for name in sorted((before.keys() | after.keys()) - IGNORED):
        if before.get(name) != after.get(name):
            yield Difference(name, before.get(name), after.get(name))


def _values(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    for name, value in after.items():
        known = before.get(name, UNKNOWN)
        if UNKNOWN not in (known, value) and known != value:
            yield Difference(name, known, value)


def _text(word: bytes | None) -> str | None:
    return None if word is None else os.fsdecode(word)


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "a folder that is gone"


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _handlers() -> tuple[logging.Handler, ...]:
    """Return the root logger's handlers without those that pytest adds around each phase of a test."""
    return tuple(handler for handler in logging.root.handlers if type(handler).__module__ != "_pytest.logging")


def _put_back_signals(handlers: tuple[Any, ...]) -> None:
    for number, handler in zip(SIGNALS, handlers, strict=True):
        signal.signal(number, handler)


def _put_back_handlers(handlers: tuple[logging.Handler, ...]) -> None:
    for handler in set(_handlers()) - set(handlers):
        logging.root.removeHandler(handler)
    for handler in handlers:
        logging.root.addHandler(handler)


def _put_back_collector(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()


def _put_back_process_group(there: bool) -> None:
    if not there:
        sys.modules["torch.distributed"].destroy_process_group()


def _torch(function: str) -> Callable[[Any], None]:
    return lambda value: getattr(sys.modules["torch"], function)(value)


PUT_BACK: Mapping[str, Callable[[Any], object]] = {
    "the working directory": os.chdir,
    "the umask": os.umask,
    "tempfile.tempdir": partial(setattr, tempfile, "tempdir"),
    "sys.path": lambda paths: sys.path.__setitem__(slice(None), paths),
    "the signal handlers": _put_back_signals,
    "the blocked signals": partial(signal.pthread_sigmask, signal.SIG_SETMASK),
    "the CPUs of the process": partial(os.sched_setaffinity, 0),
    "whether the garbage collector is enabled": _put_back_collector,
    "the garbage collector's thresholds": lambda thresholds: gc.set_threshold(*thresholds),
    "sys.excepthook": partial(setattr, sys, "excepthook"),
    "sys.unraisablehook": partial(setattr, sys, "unraisablehook"),
    "threading.excepthook": partial(setattr, threading, "excepthook"),
    "the root logger's handlers": _put_back_handlers,
    "the root logger's level": logging.root.setLevel,
    "the level that logging.disable() sets": logging.disable,
    "the locale": partial(locale.setlocale, locale.LC_ALL),
    "torch's default dtype": _torch("set_default_dtype"),
    "torch's default device": _torch("set_default_device"),
    "torch's deterministic algorithms": _torch("use_deterministic_algorithms"),
    "torch's number of threads": _torch("set_num_threads"),
    "torch's grad mode": _torch("set_grad_enabled"),
    "torch's default process group": _put_back_process_group,
}
"""What sets each value of a state."""
