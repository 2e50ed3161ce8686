"""What a user sees while a job runs: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainmaster.contract.sample_unit import unit_of
from trainmaster_operator.cli.display import rank_rows, recovery_tables
from trainmaster_operator.cli.display.number_words import clock, loss, rate, remaining, seconds
from trainmaster_operator.cli.display.rank_output import LastWords
from trainmaster_operator.cli.display.status_diff import News, Tone, cut, reached
from trainmaster_operator.planning.facts.change import counted
from trainmaster_operator.planning.facts.job_state import Failure, JobPhase, JobState
from trainmaster_operator.planning.facts.observation import PodRecord

STYLES = {Tone.PLAIN: "", Tone.GOOD: "green", Tone.WARNING: "yellow", Tone.BAD: "bold red"}
_PHASES = {
    JobPhase.RUNNING: "bold green",
    JobPhase.SUCCEEDED: "bold green",
    JobPhase.FAILED: "bold red",
    JobPhase.RECOVERING: "bold yellow",
    JobPhase.RESIZING: "bold yellow",
    JobPhase.SUSPENDING: "bold yellow",
    JobPhase.SUSPENDED: "bold yellow",
    JobPhase.HELD: "bold yellow",
}
FRAME_S = 0.25  # Seconds between two pictures.
PLAIN_EVERY_S = 5.0
PLAIN_SHARE = 0.05
MOST_PODS = 16
BAR = 36  # In characters.
FIRST_STEP_EVERY_S = 10.0
"""Seconds between two lines about a first step that lasts."""


@dataclass
class Scene:
    """Everything that a picture shows. `ranks`: the reports of ranks from the control channel, with their slots. For
    a job on a cluster, `namespace` and `pods` are used instead of these and of the output folder."""

    name: str
    world_size: int
    out: str
    total_steps: int | None = None
    status: JobState = field(default_factory=JobState)
    ranks: Sequence[dict[str, Any]] = ()
    namespace: str = ""
    pods: Sequence[PodRecord] = ()
    memory: str = ""  # At the end: which rank came nearest to its memory limit.
    words: LastWords | None = None  # At the end.
    unit: str = "tokens"  # The unit in which samples are counted.
    compiles: bool = False  # The first step of a round begins with torch.compile.
    unled: str = ""  # Sentences that say that no operator is there, so the status may be out of date.

    @property
    def place(self) -> str:
        return f"in namespace {self.namespace}" if self.namespace else f"output in {self.out}"

    @classmethod
    def of_training(cls, training: Mapping[str, Any] | None, **fields: Any) -> Scene:
        """Return a scene with what the job's `training` says, if it has one. The job may be of another release."""
        asked = training or {}
        data = asked.get("data")
        source = str(data.get("source", "")) if isinstance(data, Mapping) else ""
        known = {"total_steps": asked.get("steps"), "unit": unit_of(source), "compiles": bool(asked.get("compile"))}
        return cls(**{**known, **fields})

    @property
    def step(self) -> int:
        """The step that the rows of the ranks show."""
        return rank_rows.step_of(self.status, self.ranks)

    @property
    def has_gone_back(self) -> bool:
        """True if ranks do steps again. Ranks are read less often than the status, so they seem to lag behind it
        although nothing has gone back; only before the first step of a round do they know of it earlier."""
        progress = self.status.progress
        begins = self.status.phase in (JobPhase.STARTING, JobPhase.RECOVERING)
        return (self.step if begins else max(self.step, progress.step)) < progress.highestStep

    @property
    def eta_s(self) -> float | None:
        """Seconds until the end; None if it is unknown or no operator updates it."""
        return None if self.unled else self.status.progress.etaSeconds

    @property
    def total(self) -> int:
        return self.status.progress.totalSteps or self.total_steps or 0


class Display(Protocol):
    """Shows a scene and its changes."""

    def start(self) -> None: ...
    def tell(self, news: News) -> None: ...
    def draw(self) -> None: ...
    def stop(self) -> None: ...


def choose(scene: Scene, plain: bool, stream: TextIO | None = None) -> Display:
    """Return the display for a stream: plain lines if `plain` is true or the stream is no terminal."""
    stream = stream or sys.stdout
    if plain or not stream.isatty():
        return PlainDisplay(scene, stream)
    return LiveDisplay(scene, Console(file=stream))


class PlainDisplay:
    """Writes one line for each change, and one for each 5 % of the steps or each few seconds, whichever is rarer,
    but at most one a second."""

    def __init__(self, scene: Scene, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._scene = scene
        self._stream = stream
        self._clock = clock
        self._began = clock()
        self._told_at = self._began
        self._told_step = 0
        # The time of the last line about the first step that is under way.
        self._first_step_told_at: float | None = None
        self._first_step_began = 0.0

    def start(self) -> None:
        self._write("job", f"{self._scene.name}: {counted(self._scene.world_size, 'rank')}, {self._scene.place}")

    def tell(self, news: News) -> None:
        self._write(news.word, news.text)

    def draw(self) -> None:
        progress = self._scene.status.progress
        now = self._clock()
        self._tell_first_step(now)
        if self._scene.status.phase is not JobPhase.RUNNING or progress.step == self._told_step:
            return
        total = self._scene.total
        leap = abs(progress.step - self._told_step) >= max(1, PLAIN_SHARE * total) if total else False
        if now - self._told_at >= PLAIN_EVERY_S or (leap and now - self._told_at >= 1.0):
            self._told_at, self._told_step = now, progress.step
            self._write("step", describe(self._scene))

    def stop(self) -> None:
        """Do nothing, because every line is flushed already."""

    def _tell_first_step(self, now: float) -> None:
        """Write how long the first step takes. There is no other news during it, and with torch.compile it may take
        minutes."""
        lasts = rank_rows.first_step_s(self._scene.status, self._scene.ranks)
        told_at, word = self._first_step_told_at, "compiling" if self._scene.compiles else "first step"
        if lasts is None:
            self._first_step_told_at = None
            if told_at is not None and self._scene.status.phase is JobPhase.RUNNING:
                self._write(word, f"done after {seconds(now - self._first_step_began)}")
            return
        if told_at is None:
            self._first_step_began = now - lasts
        elif now - told_at < FIRST_STEP_EVERY_S:
            return
        self._first_step_told_at = now
        self._write(word, f"{seconds(now - self._first_step_began)} so far")

    def _write(self, word: str, text: str) -> None:
        self._stream.write(f"{clock(self._clock() - self._began)}  {word:<10}  {text}\n")
        self._stream.flush()


def describe(scene: Scene) -> str:
    """Return the progress on one line."""
    progress = scene.status.progress
    parts = [f"{progress.step}/{scene.total}" if scene.total else str(progress.step)]
    if progress.loss:
        parts.append(f"loss {loss(progress.loss)}")
    if progress.tokensPerSecond:
        parts.append(f"{rate(progress.tokensPerSecond)} {scene.unit}/s")
    elif progress.stepsPerSecond:
        parts.append(f"{rate(progress.stepsPerSecond)} steps/s")
    if scene.eta_s is not None:
        parts.append(f"ETA {remaining(scene.eta_s)}")
    return "  ".join(parts)


class LiveDisplay:
    """Draws a picture at the bottom of the terminal again and again; the news scroll away above it."""

    def __init__(self, scene: Scene, console: Console) -> None:
        self._scene = scene
        self._console = console
        self._began = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def start(self) -> None:
        scene = self._scene
        self._console.print(
            Text.assemble((scene.name, "bold"), f": {counted(scene.world_size, 'rank')}, ", (scene.place, "cyan"))
        )
        self._live.start()
        self.draw()

    def tell(self, news: News) -> None:
        if news.word == "checkpoint":
            return  # The picture shows the last checkpoint.
        told = clock(time.monotonic() - self._began)
        self._console.print(
            Text.assemble((f"{told}  ", "dim"), (f"{news.word:<10}  ", STYLES[news.tone]), news.text), highlight=False
        )

    def draw(self) -> None:
        self._live.update(picture(self._scene, time.monotonic() - self._began), refresh=True)

    def stop(self) -> None:
        self._live.stop()


def picture(scene: Scene, elapsed_s: float) -> RenderableType:
    """Return the picture of a scene."""
    status = scene.status
    head = Text.assemble(
        (status.phase.value, _PHASES.get(status.phase, "bold cyan")),
        f"   round {status.round}" if status.round else "",
        f"   {counted(status.restarts.total, 'restart')}" if status.restarts.total else "",
        (f"   {seconds(elapsed_s)}", "dim"),
    )
    lasts = rank_rows.first_step_s(status, scene.ranks)
    if lasts is not None:
        head.append(f"   {'compiling' if scene.compiles else 'first step'} {seconds(lasts)}", "yellow")
    parts: list[RenderableType] = ["", head, *([Text(scene.unled, "yellow")] if scene.unled else []), _Progress(scene)]
    if scene.ranks:
        parts.append(rank_rows.table(scene.name, status, scene.ranks, compiles=scene.compiles))
    if scene.pods:
        parts.append(pods(scene.pods))
    return Group(*parts)


class _Progress:
    """The progress bar with the numbers next to it, or below it if the terminal is too narrow for both. No number is
    cut."""

    def __init__(self, scene: Scene) -> None:
        status, progress, total = scene.status, scene.status.progress, scene.total
        step = f"step {scene.step}" + (f"/{total}" if total else "")
        if scene.has_gone_back:
            step += f", {progress.highestStep} reached before"
        words = [(step, "")]
        if progress.loss:
            words.append((f"loss {loss(progress.loss)}", ""))
        if progress.tokensPerSecond:
            words.append((f"{rate(progress.tokensPerSecond)} {scene.unit}/s", ""))
        if scene.eta_s is not None:
            words.append((f"ETA {remaining(scene.eta_s)}", ""))
        if status.checkpoint:
            words.append((f"saved {status.checkpoint.step}", "dim"))
        self._words = [Text(text, style) for text, style in words]
        self._bar = ProgressBar(
            total=total or None,
            completed=scene.step,
            width=BAR,
            pulse=not total,
            complete_style="cyan",
            finished_style="green",
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        numbers = Text("  ").join(self._words)
        beside = BAR + 2 + numbers.cell_len <= options.max_width
        line = Table.grid(padding=(0, 2), expand=False)
        line.add_row(self._bar, *([numbers] if beside else []))
        yield line
        if not beside:
            yield from _wrapped(self._words, options.max_width)


def _wrapped(words: Sequence[Text], width: int) -> Iterator[Text]:
    """Yield lines with as many of the words as fit on each; no word is divided."""
    line: list[Text] = []
    for word in words:
        if line and Text("  ").join([*line, word]).cell_len > width:
            yield Text("  ").join(line)
            line = []
        line.append(word)
    yield Text("  ").join(line)


def pods(records: Sequence[PodRecord]) -> RenderableType:
    """Return a table of pods. Pods with a reason come first."""
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in ("pod", "state", "node", "why"):
        grid.add_column(title, overflow="fold" if title == "why" else "ellipsis")
    shown = sorted(records, key=lambda pod: (not pod.reason, pod.phase == "Running", pod.role, pod.slot, pod.name))
    for pod in shown[:MOST_PODS]:
        words = "Terminating" if pod.deleting else pod.phase
        style = "green" if words == "Running" else "red" if words in ("Failed", "Missing") else "yellow"
        why = ": ".join(part for part in (pod.reason, cut(pod.message)) if part)
        grid.add_row(pod.name, Text(words, style), pod.node, Text(why))
    if len(records) > MOST_PODS:
        return Group(grid, Text(f"and {len(records) - MOST_PODS} more pods", "dim"))
    return grid


def summary(scene: Scene, console: Console, report: str = "", state: str = "") -> None:
    """Print the end of a run: the recoveries with their phases, the final loss, and where the report is if there is
    one. `state`: the state of the job in one word; by default its phase, or Stopped for a run that was ended before
    its job."""
    status = scene.status
    recovered(status, console)
    facts = [reached(status)]
    if status.progress.loss:
        facts.append(f"loss {loss(status.progress.loss)}")
    if status.goodput:
        facts.append(f"goodput {status.goodput}")
    facts.append(counted(status.restarts.total, "restart"))
    console.print()
    # A run that was ended at once leaves the job in whatever phase it was.
    ended = status.phase.finished or status.phase is JobPhase.SUSPENDED
    word = state or (status.phase.value if ended else "Stopped")
    console.print(Text.assemble((word, _PHASES.get(status.phase, "bold")), f"   {'   '.join(facts)}"))
    if status.phase is JobPhase.FAILED and status.lastFailure is not None:
        _tell_last_words(scene, status.lastFailure, console)
    if scene.memory:
        console.print(scene.memory, soft_wrap=True)
    if report:
        console.print(Text.assemble("Report: ", (report, "cyan")), soft_wrap=True)
    if scene.words is not None:
        whose = f"Log of rank {scene.words.rank}" if scene.words.rank is not None else "Logs"
        console.print(Text.assemble(f"{whose}: ", (str(scene.words.log), "cyan")), soft_wrap=True)


def _tell_last_words(scene: Scene, failure: Failure, console: Console) -> None:
    """Print what the rank that failed first wrote last: its traceback, unless its log contains it, and the last
    lines of its log."""
    lines = scene.words.lines if scene.words is not None else ()
    traceback = failure.traceback.rstrip()
    if traceback and traceback.splitlines()[-1].strip() not in map(str.strip, lines):
        console.print(Text(traceback, "dim"), soft_wrap=True)
    if lines:
        who = f"rank {failure.rank}, which failed first" if failure.rank is not None else failure.pod
        console.print(f"The last lines of {who}:", markup=False)
        for line in lines:
            console.print(Text(f"  {line}", "dim"), soft_wrap=True)


def recovered(status: JobState, console: Console) -> None:
    """Print the recoveries in a status, with the time of each phase."""
    if status.recoveries:
        _print_table(console, "Recoveries", recovery_tables.actions(status.recoveries))
        if any(recovery.clock for recovery in status.recoveries):
            _print_table(console, "Where their time went", recovery_tables.clocks(status.recoveries))


def _print_table(console: Console, title: str, cells: recovery_tables.Table) -> None:
    """Print a table, or one paragraph per row if the terminal is too narrow. No word and no number is divided. What is
    no terminal has no width, so it always gets a table."""
    console.print()
    console.print(Text(title, "bold"))
    widths = [
        max(cell_len(word) for word in (*name.split(), *(row[at] for row in cells.rows)))
        for at, name in enumerate(cells.header)
    ]
    needed = sum(widths) + len(widths) - 1
    if needed > console.width and console.is_terminal:
        for row in cells.rows:
            told = [f"{name} {cell}" for name, cell in zip(cells.header, row, strict=True) if cell]
            console.print(Text(", ".join(told)))
        return
    grid = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    for name, numeric, width in zip(cells.header, cells.numeric, widths, strict=True):
        grid.add_column(name, justify="right" if numeric else "left", min_width=width)
    for row in cells.rows:
        grid.add_row(*row)
    width = console.width
    if not console.is_terminal:
        console.width = max(width, console.measure(grid, options=console.options.update(max_width=10**4)).maximum)
    console.print(grid)
    console.width = width
