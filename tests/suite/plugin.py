"""The pytest plugin of our suite: it measures tests, orders them for workers, and knows the lists of tests.

- The end of a run lists the ten slowest tests and the time of each kind; `--record-durations FILE` writes all of it.
- With workers (`-n 2`) tests are grouped and ordered by the committed durations (see order.py).
- Tests marked `cuda` are skipped where there is no CUDA device.
- Tests named in releases.txt get the marker `release`: `-m "not release"` leaves them out.
- `--shard 1/4` leaves a quarter of the selected tests, the same one each time.
- What a test leaves changed in its process is put back, and `--fail-on-leftovers` fails it (see leftovers.py).
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.suite import keeper, order
from tests.suite.durations import BadDurations, Durations, load, save
from tests.suite.kinds import FIXTURE, KINDS, file_of, kind_of
from tests.suite.leftovers import Leftovers
from tests.suite.listing import Entry, matcher, parse
from tests.suite.measuring import Results, Stopwatch, shared_fixture

MARKERS = (
    "cuda: needs a CUDA device and is skipped without one; `make cuda ONLY=works` runs these",
    "alone: needs its machine alone; with workers these run last, one after another, when the other workers have ended",
    "together: uses what other tests of the file with the same parameters have computed; they run on one worker. "
    "With an argument: those with the same argument do, whatever their parameters are",
    "release: guards releases only (tests/suite/releases.txt names it); `make test-all` runs these too",
)
OUR_SCHEDULER = ("load", "loadgroup")
"""The values of `--dist` with which tests go to workers as order.py says; `load` is what `-n 2` alone means."""

HANDOVER = "suite_groups"
"""What the folder of the groups is called in what pytest-xdist tells a worker."""

SLOWEST = 10
SHOWN_FROM_S = 0.05


@dataclass(frozen=True)
class Suite:
    """What the files of the suite's folder say."""

    known: Durations
    releases: Sequence[Entry]


@dataclass(frozen=True)
class Collected:
    """All tests that were collected, before any selection; `whole`: they are those of all of our test folders."""

    ids: Sequence[str]
    whole: bool


SUITE = pytest.StashKey[Suite]()
COLLECTED = pytest.StashKey[Collected]()
RESULTS = pytest.StashKey[Results]()
GROUPS = pytest.StashKey["TemporaryDirectory[str]"]()
KEPT = pytest.StashKey[ExitStack]()
KEEPER = pytest.StashKey[Path]()


def shard_of(text: str) -> tuple[int, int]:
    """Return the number of a shard, from 1, and how many there are. Raises argparse.ArgumentTypeError."""
    first, slash, last = text.partition("/")
    if not (slash and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard; the second of four is 2/4")
    return int(first), int(last)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("suite", "durations and order of tests")
    group.addoption("--record-durations", metavar="FILE", type=Path, help="write how long each test took, as JSON")
    group.addoption("--shard", metavar="I/N", type=shard_of, help="run one of N parts of the selected tests")
    group.addoption("--fail-on-leftovers", action="store_true", help="fail tests that leave their process changed")
    group.addoption(
        "--suite-folder",
        metavar="FOLDER",
        type=Path,
        default=Path(__file__).parent,
        help="the folder with durations.json and releases.txt (default: %(default)s)",
    )


def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    folder: Path = config.getoption("suite_folder")
    releases = folder / "releases.txt"
    try:
        known = load(folder / "durations.json")
    except BadDurations as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[SUITE] = Suite(known, parse(releases.read_text()) if releases.exists() else [])
    path: str | None = getattr(config, "workerinput", {}).get(keeper.WORKER_INPUT)
    keeper.kept = None if path is None else Path(path)
    config.pluginmanager.register(Stopwatch(), "suite-stopwatch")
    tempfile.gettempdir()  # The first call sets tempfile.tempdir, and no test is to blame for that.
    config.pluginmanager.register(Leftovers(config.getoption("fail_on_leftovers")), "suite-leftovers")
    if not _is_worker(config):
        config.stash[RESULTS] = Results()
        config.pluginmanager.register(config.stash[RESULTS], "suite-results")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist where to write the groups of the tests, and where the keeper answers."""
    config: pytest.Config = node.config
    if KEPT not in config.stash:
        config.stash[KEPT] = ExitStack()
        folder = config.stash[KEPT].enter_context(TemporaryDirectory(prefix="kept-"))
        config.stash[KEEPER] = config.stash[KEPT].enter_context(keeper.keeping(Path(folder)))
    node.workerinput[keeper.WORKER_INPUT] = str(config.stash[KEEPER])
    if config.getoption("dist") in OUR_SCHEDULER:
        if GROUPS not in config.stash:
            config.stash[GROUPS] = TemporaryDirectory(prefix="groups-")
        node.workerinput[HANDOVER] = config.stash[GROUPS].name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    if GROUPS not in config.stash:
        return None
    # Only a run with workers has pytest-xdist.
    from tests.suite.scheduling import LongestFirst

    # Otherwise pytest-xdist sorts the groups by their number of tests.
    config.option.loadscopereorder = False
    return LongestFirst(config, log, Path(config.stash[GROUPS].name))


def pytest_unconfigure(config: pytest.Config) -> None:
    if KEPT in config.stash:
        config.stash[KEPT].close()
    if GROUPS in config.stash:
        config.stash[GROUPS].cleanup()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import all tests without the garbage collector, and let it leave alone for good what is there then: it would look
    at torch and thousands of tests again and again, and find nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Mark tests before `-m` selects, then take the shard and sort what is left."""
    suite = config.stash[SUITE]
    config.stash[COLLECTED] = Collected([item.nodeid for item in items], _is_whole(config))
    is_listed = matcher(suite.releases)
    for item in items:
        if is_listed(item.nodeid):
            item.add_marker(pytest.mark.release)
    cases = {item: _case(item) for item in items}
    groups = {item: order.group_of(case, suite.known) for item, case in cases.items()}
    yield
    shard: tuple[int, int] | None = config.getoption("shard")
    if shard is not None:
        measured = order.measure([cases[item] for item in items], [groups[item] for item in items], suite.known)
        chosen = order.split(measured.values(), shard[1])[shard[0] - 1]
        config.hook.pytest_deselected(items=[item for item in items if groups[item] not in chosen])
        items[:] = [item for item in items if groups[item] in chosen]
    handover: str | None = getattr(config, "workerinput", {}).get(HANDOVER)
    if handover is not None:
        groups |= {item: order.ALONE for item in items if item.get_closest_marker("alone")}
        positions = order.longest_first([cases[item] for item in items], [groups[item] for item in items], suite.known)
        items[:] = [items[position] for position in positions]
        # The controller waits for the end of the collection, so it finds the file.
        file = Path(handover) / f"{config.workerinput['workerid']}.json"
        file.write_text(json.dumps({item.nodeid: groups[item] for item in items}))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is not None:
        # Most runs have no such test, and torch takes seconds to import.
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    target: Path | None = session.config.getoption("record_durations")
    if target is None or _is_worker(session.config) or not _is_complete(exitstatus):
        return
    save(session.config.stash[RESULTS].durations(), target)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    results = config.stash[RESULTS]
    write = terminalreporter.write_line
    target: Path | None = config.getoption("record_durations")
    if target is not None:
        write(f"durations: {target}" if _is_complete(exitstatus) else f"{target} not written: the run was cut short")
    slowest = sorted(results.seconds.items(), key=lambda pair: -pair[1])[:SLOWEST]
    slowest = [(test, seconds) for test, seconds in slowest if seconds >= SHOWN_FROM_S]
    if config.option.verbose < 0 or not slowest:
        return
    terminalreporter.section(f"slowest {len(slowest)} tests, with their own set-up and end")
    for test, seconds in slowest:
        write(f"{seconds:8.2f} s  {test}")
    write("")
    sums = order.sums(results.seconds, results.kinds)
    for kind in KINDS:
        if kind.name in sums:
            tests, seconds = sums[kind.name]
            write(f"{seconds:8.2f} s  {kind.name}: {tests} tests")
    write(f"{results.fixtures_of_all_workers_s:8.2f} s  {FIXTURE.name}s")


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _is_complete(exitstatus: int) -> bool:
    return exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


def _is_whole(config: pytest.Config) -> bool:
    """Tell whether the run was asked for all of the repository's tests, before any selection by name or marker."""
    asked = {(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args}
    everything = {(config.rootpath / folder).resolve() for folder in config.getini("testpaths")}
    named = any("::" in argument for argument in config.args)
    left_out = any(config.getoption(name, None) for name in ("ignore", "ignore_glob", "deselect", "lf"))
    return bool(everything) and asked == everything and not named and not left_out


def _parameters(item: pytest.Item) -> str:
    return item.callspec.id if isinstance(item, pytest.Function) else ""


def _case(item: pytest.Item) -> order.Case:
    file = file_of(item.nodeid)
    definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    names = {shared_fixture(found[-1], file) for found in definitions.values() if found}
    shared = tuple(sorted(name for name in names if name is not None and file_of(name) == file))
    marker = item.get_closest_marker("together")
    together = "" if marker is None else str(marker.args[0]) if marker.args else _parameters(item)
    kind = kind_of(item.nodeid, item.get_closest_marker("processes") is not None)
    return order.Case(item.nodeid, kind, shared, together)
