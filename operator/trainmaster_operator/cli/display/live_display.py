"""What a user sees while a job runs: a live picture on a terminal, plain lines elsewhere (`plain_display`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Protocol, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainmaster.contract.wire import Cause
from trainmaster_operator.cli.display import goodput_words, pod_rows, rank_rows, recovery_tables
from trainmaster_operator.cli.display.number_words import clock, loss, rate, remaining, seconds
from trainmaster_operator.cli.display.piece_of_news import News, Tone
from trainmaster_operator.cli.display.plain_display import PlainDisplay
from trainmaster_operator.cli.display.scenes import Scene
from trainmaster_operator.cli.display.status_diff import reached
from trainmaster_operator.cli.stored_state import INTERRUPTED
from trainmaster_operator.planning.facts.counted_nouns import counted
from trainmaster_operator.planning.facts.job_state import Failure, JobPhase, JobState

STYLES = {Tone.PLAIN: "", Tone.GOOD: "green", Tone.WARNING: "yellow", Tone.BAD: "bold red"}
PHASE_STYLES = {
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
BAR = 36  # In characters.


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
        (status.phase.value, PHASE_STYLES.get(status.phase, "bold cyan")),
        f"   round {status.round}" if status.round else "",
        f"   {counted(status.restarts.total, 'restart')}" if status.restarts.total else "",
        (f"   {seconds(elapsed_s)}", "dim"),
    )
    lasts = rank_rows.first_step_s(status, scene.ranks)
    if lasts is not None:
        head.append(f"   {'compiling' if scene.compiles else 'first step'} {seconds(lasts)}", "yellow")
    if (still := scene.standstill) is not None:
        head.append(f"   {still.words}", "yellow")
    parts: list[RenderableType] = ["", head, *([Text(scene.unled, "yellow")] if scene.unled else []), _Progress(scene)]
    if scene.ranks:
        parts.append(rank_rows.table(scene.name, status, scene.ranks, compiles=scene.compiles))
    if scene.pods:
        parts.append(pod_rows.table(scene.pods))
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
        stands = scene.standstill is not None
        if progress.tokensPerSecond and not stands:
            words.append((f"{rate(progress.tokensPerSecond)} {scene.unit}/s", ""))
        if scene.eta_s is not None and not stands:
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


def summary(scene: Scene, console: Console, report: str = "", *, state_is_told: bool = False) -> None:
    """Print the end of a run: the recoveries with their phases, the state, the goodput, and where the report is if
    there is one. `state_is_told`: the state, the step and the loss have been printed before."""
    status = scene.status
    recovered(status, console)
    facts = [] if state_is_told else [_end_state(status), Text(reached(status))]
    if status.progress.loss and not state_is_told:
        facts.append(Text(f"loss {loss(status.progress.loss)}"))
    still = scene.standstill
    if still is not None and still.goodput:
        facts.append(Text(f"goodput {still.goodput}"))
    elif still is None and status.goodput:
        facts.append(Text(goodput_words.describe(status)))
    facts.append(Text(counted(status.restarts.total, "restart")))
    console.print()
    console.print(Text("   ").join(facts))
    if status.phase is JobPhase.FAILED and status.lastFailure is not None:
        _tell_last_words(scene, status.lastFailure, console)
    if scene.memory:
        console.print(scene.memory, soft_wrap=True)
    if report:
        console.print(Text.assemble("Report: ", (report, "cyan")), soft_wrap=True)
    if scene.words is not None:
        whose = f"Log of rank {scene.words.rank}" if scene.words.rank is not None else "Logs"
        console.print(Text.assemble(f"{whose}: ", (str(scene.words.log), "cyan")), soft_wrap=True)


def _end_state(status: JobState) -> Text:
    """Return the state of a run that has ended, in one word. A run that was ended at once leaves the job in whatever
    phase it was."""
    ended = status.phase.finished or status.phase is JobPhase.SUSPENDED
    return Text(status.phase.value if ended else INTERRUPTED, PHASE_STYLES.get(status.phase, "bold"))


def _tell_last_words(scene: Scene, failure: Failure, console: Console) -> None:
    """Print what the rank that failed first wrote last: its traceback, unless its log contains it, and the last
    lines of its log."""
    lines = scene.words.lines if scene.words is not None else ()
    traceback = failure.traceback.rstrip()
    who = f"rank {failure.rank}, which failed first" if failure.rank is not None else failure.pod
    if traceback and traceback.splitlines()[-1].strip() not in map(str.strip, lines):
        kind = "stack" if failure.cause == Cause.HANG else "traceback"
        console.print(f"The {kind} of {who}:", markup=False)
        for line in traceback.splitlines():
            console.print(Text(f"  {line}", "dim"), soft_wrap=True)
    if lines:
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
