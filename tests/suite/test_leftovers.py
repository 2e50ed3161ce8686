"""What a test leaves behind in its process is named and put back, in runs of pytest on a made-up file of tests."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.suite.leftovers import OF_LIBRARIES, PUT_BACK, State, differences, state

ROOT = Path(__file__).parents[2]

WIDE = """
import os
import sys

import pytest


@pytest.fixture(scope="module")
def region():
    os.environ["REGION"] = "north"
    sys.path.append("/region")
    yield
    del os.environ["REGION"]
    sys.path.remove("/region")


@pytest.fixture(scope="module")
def careless():
    os.environ["ZONE"] = "a"


def test_before():
    assert "REGION" not in os.environ


def test_first(region):
    assert os.environ["REGION"] == "north"


def test_second(region):
    assert os.environ["REGION"] == "north"


def test_third(careless):
    assert os.environ["ZONE"] == "a"


def test_last(monkeypatch, careless):
    monkeypatch.setenv("REGION", "south")
"""
NARROW = """
import os

import pytest

os.environ["GIVEN"] = "1"


@pytest.fixture
def broken():
    yield
    assert False, "on purpose"


def test_sets(monkeypatch):
    monkeypatch.setenv("COLOUR", "red")
    os.environ["SHAPE"] = "round"


def test_removes_and_moves():
    assert "SHAPE" not in os.environ
    del os.environ["GIVEN"]
    os.chdir("/")


def test_fails_at_its_end(broken):
    assert os.environ["GIVEN"] == "1"
    assert os.getcwd() != "/"
    os.environ["SIZE"] = "7"


def test_is_clean():
    assert "SIZE" not in os.environ
"""


def run(folder: Path, source: str) -> str:
    (folder / "test_made_up.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "suite").mkdir()
    command = [sys.executable, "-m", "pytest", "-p", "tests.suite.plugin", "-p", "no:cacheprovider", "-rA"]
    command += ["--fail-on-leftovers"]
    command += ["-c", str(folder / "pytest.ini"), "--suite-folder", str(folder / "suite"), str(folder)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.processes
def test_a_test_that_leaves_something_fails_and_the_next_one_does_not_see_it(tmp_path: Path) -> None:
    output = run(tmp_path, NARROW)
    assert "The test left the variable SHAPE in the environment: 'round'; it was not set." in output
    assert re.search(
        r"The test removed the variable GIVEN from the environment; it was '1', and left the working directory "
        rf"as '/'; it was '{re.escape(str(ROOT))}'\.",
        output,
    )
    assert "on purpose" in output
    assert "The test also left the variable SIZE in the environment: '7'; it was not set." in output
    assert "COLOUR" not in output.partition("short test summary")[2]
    assert "4 passed, 3 errors" in output


@pytest.mark.processes
def test_a_fixture_of_a_module_may_change_the_state_until_it_ends(tmp_path: Path) -> None:
    output = run(tmp_path, WIDE)
    assert re.findall(r"ERROR at teardown of (\w+) _+\n(.*)", output) == [
        ("test_last", "The test left the variable ZONE in the environment: 'a'; it was not set.")
    ], output
    assert "5 passed, 1 error" in output


def _set_umask() -> None:
    os.umask(0o027)


def _torch(function: str, value: object) -> Callable[[], None]:
    def call() -> None:
        import torch

        getattr(torch, function)(value)

    return call


def _process_group() -> None:
    import torch.distributed as dist

    hook = sys.excepthook
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    sys.excepthook = hook


CHANGES: dict[str, Callable[[], object]] = {
    "the umask": _set_umask,
    "the working directory": lambda: os.chdir("/"),
    "tempfile.tempdir": lambda: setattr(tempfile, "tempdir", "/nowhere"),
    "sys.path": lambda: sys.path.append("/nowhere"),
    "the signal handlers": lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
    "the blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2}),
    "the CPUs of the process": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "whether the garbage collector is enabled": gc.disable,
    "the garbage collector's thresholds": lambda: gc.set_threshold(71, 8, 9),
    "sys.excepthook": lambda: setattr(sys, "excepthook", print),
    "sys.unraisablehook": lambda: setattr(sys, "unraisablehook", print),
    "threading.excepthook": lambda: setattr(threading, "excepthook", print),
    "the root logger's handlers": lambda: logging.root.addHandler(logging.NullHandler()),
    "the root logger's level": lambda: logging.root.setLevel(7),
    "the level that logging.disable() sets": lambda: logging.disable(logging.CRITICAL),
    "torch's default dtype": lambda: _torch("set_default_dtype", _dtype())(),
    "torch's default device": _torch("set_default_device", "meta"),
    "torch's deterministic algorithms": _torch("use_deterministic_algorithms", True),
    "torch's number of threads": _torch("set_num_threads", 7),
    "torch's grad mode": _torch("set_grad_enabled", False),
    "torch's default process group": _process_group,
}


def _dtype() -> object:
    import torch

    return torch.float64


@pytest.fixture
def before() -> Iterator[State]:
    import torch.distributed  # noqa: F401  otherwise its state can't be read

    known = state()
    yield known
    for difference in differences(known, state()):
        difference.put_back()


@pytest.mark.parametrize("name", [name for name in PUT_BACK if name != "the locale"])
def test_each_value_is_found_and_put_back(name: str, before: State) -> None:
    if name == "the CPUs of the process" and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a process with one CPU has none to leave")
    CHANGES[name]()
    found = [difference for difference in differences(before, state()) if difference.name not in OF_LIBRARIES]
    assert [difference.name for difference in found] == [name]
    assert name in str(found[0])
    found[0].put_back()
    assert {difference.name for difference in differences(before, state())} <= OF_LIBRARIES


def test_a_variable_that_a_test_changes_or_pytest_sets(before: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another")
    assert differences(before, state()) == []
    os.environ["FOUND_HERE"] = "1"
    first = state()
    os.environ["FOUND_HERE"] = "2"
    changed = differences(first, state())
    assert [str(difference) for difference in changed] == [
        "left the variable FOUND_HERE in the environment: '2'; it was '1'"
    ]
