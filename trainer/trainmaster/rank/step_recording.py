"""Steps of a script that somebody asks for are recorded by the profiler of the script's framework, in each rank.

A script has no collective by which its ranks could agree on the steps. Each rank sees the request at the end of one of
its own steps, and the first one that sees it decides which steps all ranks with the same folder record
(`contract.wire.profile_records`). While nobody asks, a step costs one look for a file. Nothing here raises: a profiler
that fails is reported, and the training continues.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import socket
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from trainmaster.agent.frameworks.framework import Profiler
from trainmaster.contract.wire import environment, profile_records, profile_request
from trainmaster.contract.wire.profile_records import BEGUN, DONE, FAILED, Mark, Window
from trainmaster.contract.wire.profile_request import Request
from trainmaster.contract.wire.progress_record import Phase
from trainmaster.host import own_pod
from trainmaster.rank import framework_joining

CUT_OFF = "the ranks were restarted while steps were recorded"

Enter = Callable[[Phase], None]
"""Publishes the phase of this rank."""

_recorder: Recorder | None = None
_known = False  # whether this rank records at all is known


def completed(step: int, enter: Enter) -> None:
    """Note that the script has completed a step. Call it at the end of each one."""
    global _recorder, _known
    if not _known:
        _known = True
        try:
            _recorder = _of_this_rank()
        except (KeyError, ValueError) as error:  # a script may change its environment
            _say(f"trainmaster: this rank can record no steps: {error}", sys.stderr)
    if _recorder is not None:
        _recorder.completed(step, enter)


@dataclass(frozen=True)
class Place:
    """A folder of requests, and the ranks that look there."""

    folder: Path
    rank: int
    ranks: range
    round: int
    is_shared: bool
    """All ranks of the run look there. Otherwise it belongs to one pod, from which a command fetches the records."""


def _of_this_rank() -> Recorder | None:
    framework = framework_joining.of_this_rank()
    output = os.environ.get(environment.OUTPUT_DIR)
    folder = output or os.environ.get(environment.FAULT_DIR)
    if framework is None or framework.profiler is None or not folder:
        return None
    rank = int(os.environ["RANK"])
    first = 0 if output else rank - own_pod.local_rank()
    ranks = range(first, first + (int(os.environ["WORLD_SIZE"]) if output else own_pod.size()))
    round = int(os.environ.get(environment.ROUND, "0"))
    return Recorder(framework.name, framework.profiler, Place(Path(folder), rank, ranks, round, bool(output)))


@dataclass
class _Recording:
    """What is under way."""

    window: Window
    began_after: int
    handle: Any
    work: Path
    enter: Enter
    step: AbstractContextManager[Any] = field(default_factory=contextlib.nullcontext)


class Recorder:
    """Records the steps of one rank."""

    def __init__(self, framework: str, profiler: Profiler, place: Place) -> None:
        self._framework, self._profiler, self._place = framework, profiler, place
        self._path = os.path.join(place.folder, profile_request.FILE)
        self._step = 0
        self._seen: tuple[int, int] | None = None  # of the file that was read last: its inode and its time
        self._request: Request | None = None  # that this rank has to fulfil
        self._window: Window | None = None
        self._recording: _Recording | None = None
        self._undo: list[Callable[[], None]] = []  # gives a script its own functions back

    def completed(self, step: int, enter: Enter) -> None:
        """Begin or end a recording at the end of `step`, if that is due. A step that was counted before is ignored."""
        if step <= self._step:
            return
        self._step = step
        if self._recording is None:
            try:
                found = os.stat(self._path)
            except OSError:
                return  # nearly always
            self._attempt(lambda: self._look(step, (found.st_ino, found.st_mtime_ns), enter))
        else:
            self._attempt(lambda: self._go_on(step))

    def _attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001  whatever a profiler raises, the training goes on
            self._abandon()
            text = " ".join(str(error).split())
            failure = f"{type(error).__name__}: {text}"
            self._fail(
                f"recording with the profiler of {self._framework} has failed, and the training goes on: {failure}"
            )

    def _abandon(self) -> None:
        """Stop a profiler that is still recording after an error, whose message is the one that counts."""
        recording, self._recording = self._recording, None
        if recording is not None:
            with contextlib.suppress(Exception):
                self._profiler.stop(recording.handle, os.fspath(recording.work))

    def _look(self, step: int, seen: tuple[int, int], enter: Enter) -> None:
        if seen != self._seen:
            self._seen, self._window = seen, None
            self._request = profile_request.read(self._path)
            self._accept(step)
        if self._window is not None and step >= self._window.first - 1:
            self._begin(step, enter)

    def _accept(self, step: int) -> None:
        """Find out which steps the request means. None, if this rank has nothing to do for it."""
        request, place = self._request, self._place
        if request is None:
            return
        marks = profile_records.read_marks(place.folder, request.identity)
        own = marks.get(place.rank)
        if own is not None and own.finished:
            self._request = None
        elif any(mark.round != place.round for mark in marks.values()):
            self._fail(CUT_OFF)
        elif own is not None:
            self._request = None  # another program of this rank has begun to
        elif self._profiler.module not in sys.modules:
            self._fail(f"the script has not imported {self._profiler.module}, so its profiler cannot be started")
        else:
            self._window = profile_records.claim(place.folder, request.identity, place.round, step, request.steps)

    def _begin(self, step: int, enter: Enter) -> None:
        assert self._window is not None
        assert self._request is not None
        self._mark(BEGUN)
        work = profile_records.work_folder(self._place.folder, self._request.identity, self._place.rank)
        work.mkdir()
        enter(Phase.EVAL)  # it may import, and takes its time
        try:
            handle = self._profiler.start(os.fspath(work))
        finally:
            enter(Phase.STEP)
        self._recording = _Recording(self._window, step, handle, work, enter)
        atexit.register(self._at_exit, os.getpid())
        self._undo = list(self._watch_starts())
        self._name(self._recording, step + 1)

    def _go_on(self, step: int) -> None:
        assert self._recording is not None
        assert self._request is not None
        recording = self._recording
        recording.step.__exit__(None, None, None)
        if step < recording.began_after + self._request.steps:
            self._name(recording, step + 1)
        else:
            self._end(recording, step)

    def _end(self, recording: _Recording, step: int) -> None:
        """Stop the profiler at the end of `step`, and put its files where TensorBoard looks for them."""
        self._recording = self._window = None
        withdrawn = not recording.work.exists()
        recording.work.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        recording.enter(Phase.EVAL)
        try:
            self._profiler.stop(recording.handle, os.fspath(recording.work))
            if not withdrawn:
                self._put_in_place(recording)
        finally:
            recording.enter(Phase.STEP)
        if withdrawn:
            self._leave()
            return
        words = f"steps {recording.began_after + 1} to {step}"
        if self._place.rank == self._place.ranks[0]:
            where = recording.window.folder
            _say(
                f"profile of {words}: the profiler of {self._framework} has written its records into {where}, which "
                f"tensorboard --logdir opens ({time.monotonic() - began:.1f} s)",
                sys.stdout,
            )
        self._finish(DONE, words)

    def _leave(self) -> None:
        """Remove what this rank has recorded for a request that was withdrawn."""
        self._restore()
        if self._request is not None:
            profile_records.remove(self._place.folder, self._request.identity)
        self._request = None

    def _restore(self) -> None:
        atexit.unregister(self._at_exit)
        for undo in self._undo:
            undo()
        self._undo = []

    def _watch_starts(self) -> Iterator[Callable[[], None]]:
        """Let a script that starts the profiler itself end the recording first. Yield what takes that back."""
        for module, name in self._profiler.starts.items():
            *above, last = name.split(".")
            owner: Any = sys.modules.get(module)
            for part in above:
                owner = getattr(owner, part, None)
            original = getattr(owner, last, None)
            if original is None:
                continue
            yield from _replace(owner, last, original, self._giving_way(original), everywhere=not above)

    def _giving_way(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def start(*args: Any, **kwargs: Any) -> Any:
            if self._recording is not None:
                self._abandon()
                self._fail("the script has started the profiler itself")
            return original(*args, **kwargs)

        return start

    def _name(self, recording: _Recording, step: int) -> None:
        recording.step = self._profiler.step(step)
        recording.step.__enter__()

    def _put_in_place(self, recording: _Recording) -> None:
        """Move the records to the folder of all ranks, under the name of this rank instead of its machine's."""
        moved = 0
        for path in [path for path in recording.work.rglob("*") if path.is_file()]:
            name = name_of_rank(path.name, self._place.rank)
            place = profile_records.place_of(name, recording.window.folder.name)
            if place is not None:
                target = recording.window.folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
                moved += 1
        if not moved:
            raise ValueError("it has written no file that TensorBoard opens")

    def _at_exit(self, pid: int) -> None:
        """Keep the steps that are recorded when the script ends before the last one."""
        recording, done = self._recording, self._step
        if recording is None or os.getpid() != pid:
            return
        if done == recording.began_after:
            self._abandon()
            self._fail("the process ended within the first of the steps")
            return
        self._attempt(lambda: self._end(recording, done))

    def _fail(self, words: str) -> None:
        _say(f"trainmaster: rank {self._place.rank} records no steps: {words}", sys.stderr)
        self._recording = self._window = None
        try:
            self._finish(FAILED, words)
        except Exception as error:  # noqa: BLE001  as above
            _say(f"trainmaster: the request in {self._path} stays: {error}", sys.stderr)

    def _mark(self, state: str, words: str = "") -> None:
        assert self._request is not None
        mark = Mark(state, self._place.round, words)
        profile_records.write_mark(self._place.folder, self._request.identity, self._place.rank, mark)

    def _finish(self, state: str, words: str) -> None:
        """Write that this rank is done with the request. The last rank of this folder removes the request."""
        self._restore()
        request, self._request = self._request, None
        if request is None:
            return
        folder, identity = self._place.folder, request.identity
        shutil.rmtree(profile_records.work_folder(folder, identity, self._place.rank), ignore_errors=True)
        profile_records.write_mark(folder, identity, self._place.rank, Mark(state, self._place.round, words))
        marks = profile_records.read_marks(folder, identity)
        if all(rank in marks and marks[rank].finished for rank in self._place.ranks):
            profile_request.take_away(self._path, identity)
            if self._place.is_shared:
                profile_records.forget(folder, identity)


def _replace(
    owner: Any, name: str, original: Any, replacement: Any, *, everywhere: bool
) -> Iterator[Callable[[], None]]:
    """Replace a function, with `everywhere` also where modules have imported it. Yield what takes that back."""
    places = [(owner, name)]
    for module in [*sys.modules.values()] if everywhere else []:
        if isinstance(module, types.ModuleType) and module is not owner:
            places += [(module, key) for key, value in [*vars(module).items()] if value is original]
    for place, key in places:
        setattr(place, key, replacement)
        yield functools.partial(setattr, place, key, original)


def _say(line: str, stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):  # a script may have closed it
        print(line, file=stream, flush=True)


def name_of_rank(name: str, rank: int) -> str:
    """Return the name of a file of records with the name of a rank in the place of this machine's name.

    Profilers name a file after the machine, so those of several ranks on one machine would replace each other.
    """
    rest = name.removeprefix(f"{socket.gethostname()}.")
    return f"{profile_records.rank_name(rank)}.{rest}"
