"""Recorded steps: `training.profile` names them, or a person asks for the next ones. All ranks record them, and rank 0
makes one page of all recordings.

The results are in profile/steps-<first>-<last>.r<round> in the run's output folder, or in the checkpoint folder if
there is no output folder: a trace of each rank for Perfetto or chrome://tracing, and index.html, which needs nothing
but a browser. Recording changes no number of the training.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from trainmaster.contract.config import ProfileConfig
from trainmaster.contract.wire import environment, profile_request
from trainmaster.contract.wire.progress_record import Phase
from trainmaster.rank.reporter import Reporter
from trainmaster.tools.profiling import profile_page
from trainmaster.tools.profiling.profile_page import bars, top
from trainmaster.tools.profiling.time_split import Span, Split, in_words, split
from trainmaster.train.process_group import World

_STEP = "trainmaster step "
_SENDS = ("gloo:", "nccl:", "ucc:", "mpi:", "c10d::")

_AHEAD = 2
"""Steps from the one in whose last all-reduce rank 0 says that it was asked, to the first that is recorded: numbers of
a step are on the host of each rank when the next step is over, and no rank has to wait for them before."""


class Profiler:
    """The profiler of a rank. `config` has steps that are known from the start, and `steps` is the last step of the
    run.

    All ranks record the same steps: what rank 0 is asked for during the run, the others learn by the last all-reduce of
    a step (`wish`, `granted`).
    """

    def __init__(self, config: ProfileConfig | None, reporter: Reporter, world: World, steps: int) -> None:
        self._reporter, self._world, self._steps = reporter, world, steps
        self._configured = config.steps if config is not None else None
        self._asked: tuple[int, int] | None = None  # first and last
        self._request: Path | None = None  # that rank 0 has passed on
        self._under_way: profile | None = None
        self._first = 0
        places = (os.environ.get(environment.FAULT_DIR), reporter.output)
        self._places = [os.fspath(place) for place in places if place] if world.rank == 0 else []

    def wish(self, step: int) -> int:
        """Return how many steps this rank was asked to record, for the last all-reduce of `step`."""
        if self._request is not None or (found := profile_request.asked(self._places)) is None:
            return 0
        path, steps = found
        if not steps:
            self._reporter.event(
                "ProfileRefused", f"{path} doesn't hold a number of steps from 1 to {profile_request.MOST}"
            )
            path.unlink(missing_ok=True)
            return 0
        configured = self._configured
        if configured is not None and configured[0] < step + _AHEAD + steps and step <= configured[1]:
            return 0  # when those are recorded
        self._request = path
        return steps

    def granted(self, step: int, steps: int) -> None:
        """Note that all ranks know since `step` that `steps` steps are to be recorded."""
        if steps:
            self._asked = (step + _AHEAD, min(step + _AHEAD + steps - 1, self._steps))

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """A context around a step, which records it if it is to be recorded."""
        window = next((w for w in (self._configured, self._asked) if w is not None and w[0] <= step <= w[1]), None)
        if window is None:
            yield
            return
        if self._under_way is None:
            if window is self._asked and self._request is not None:
                self._request.unlink(missing_ok=True)  # now: if recording ends this process, it isn't tried again
            self._start(step)
        with record_function(f"{_STEP}{step}"):
            yield
        if step == window[1]:
            self._end(step)
            if window is self._asked:
                self._asked = self._request = None

    def _start(self, step: int) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # it tells people of each thing that it can't do here
        kinds = [ProfilerActivity.CPU]
        if self._world.device.type == "cuda":
            kinds.append(ProfilerActivity.CUDA)
        self._first = step
        self._under_way = profile(activities=kinds)
        self._under_way.start()

    def _end(self, last: int) -> None:
        assert self._under_way is not None
        recorded, self._under_way = self._under_way, None
        began = time.monotonic()
        before, self._reporter.progress.phase = self._reporter.progress.phase, Phase.EVAL
        self._reporter.beat()
        recorded.stop()
        folder = self._folder(last)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            recorded.export_chrome_trace(str(folder / f"rank-{self._world.rank:05d}.trace.json.gz"))
        found = summary(list(recorded.events()))
        splits = [Split(**values) for values in self._gather("split", dataclasses.asdict(found[0]))]
        order = sorted(range(len(splits)), key=lambda rank: -splits[rank].own)
        timelines = self._gather("timeline", found[1], order[: profile_page.TIMELINES])
        if self._world.rank == 0:
            self._tell(folder, last, splits, order, timelines, time.monotonic() - began)
        self._reporter.phase(Phase(before))

    def _folder(self, last: int) -> Path | None:
        directory = os.environ.get(environment.CHECKPOINT_DIR)
        output = self._reporter.output or (Path(directory) if directory else None)
        return output and output / "profile" / f"steps-{self._first}-{last}.r{self._reporter.round}"

    def _gather(self, what: str, own: dict[str, Any], asked: list[int] | None = None) -> list[dict[str, Any]]:
        """Gather the `own` of all ranks, or of the ranks `asked`, on rank 0. Return [] on the other ranks."""
        store, key = self._world.store, f"profile/{self._first}/{what}"
        store.set(f"{key}/{self._world.rank}", zlib.compress(json.dumps(own).encode()))
        if self._world.rank != 0:
            return []
        ranks = range(self._world.size) if asked is None else asked
        return [json.loads(zlib.decompress(store.get(f"{key}/{rank}"))) for rank in ranks]

    def _tell(
        self,
        folder: Path | None,
        last: int,
        splits: list[Split],
        order: list[int],
        timelines: list[dict[str, Any]],
        seconds: float,
    ) -> None:
        where = ""
        if folder is not None:
            text = profile_page.page(self._first, last, self._reporter.round, splits, order, timelines)
            (folder / "index.html").write_text(text, encoding="utf-8")
            where = f"; {folder / 'index.html'}"
        print(f"profile of steps {self._first} to {last}: {in_words(splits)}{where} ({seconds:.1f} s)", flush=True)


def summary(events: list[FunctionEvent]) -> tuple[Split, dict[str, Any]]:
    """Return (where the time went, a timeline) of one rank's recorded steps. torch's times are microseconds."""
    marks = [e for e in events if e.name.startswith(_STEP) and e.device_type == DeviceType.CPU]
    steps = sorted((int(e.name[len(_STEP) :]), e.time_range.start, e.time_range.end) for e in marks)
    window = steps[0][1], steps[-1][2]
    on_device = [e for e in events if e.device_type != DeviceType.CPU and not e.is_user_annotation]
    sending = [e for e in events if _sends(e)]
    computing = [e for e in on_device or events if not _sends(e) and (on_device or _computes(e))]
    compute, communication = _spans(computing), _spans(sending)
    # Clocks of machines differ. All leave the last collective of a step at the same moment, nearly.
    ends = [span.end for span in communication if span.end <= steps[0][2]]
    origin = max(ends, default=steps[0][2])
    timeline = {
        "steps": [(number, round(start - origin), round(end - start)) for number, start, end in steps],
        "compute": bars(compute, window, origin),
        "communication": bars(communication, window, origin),
        "top": top([*compute, *communication]),
    }
    return split(len(steps), window, compute, communication), timeline


def _sends(event: FunctionEvent) -> bool:
    return event.name.startswith(_SENDS) or (event.device_type != DeviceType.CPU and "nccl" in event.name.lower())


def _computes(event: FunctionEvent) -> bool:
    """Return True for an operator of the host, and False for frames that only account, call back, or wait."""
    if event.is_async or event.is_user_annotation or "::wait_tensor" in event.name:
        return False
    return event.name.startswith("aten::") or not event.cpu_children


def _spans(events: list[FunctionEvent]) -> list[Span]:
    return [
        Span(
            e.name,
            e.time_range.start,
            e.time_range.end,
            e.time_range.elapsed_us() - sum(child.time_range.elapsed_us() for child in e.cpu_children),
        )
        for e in events
    ]
