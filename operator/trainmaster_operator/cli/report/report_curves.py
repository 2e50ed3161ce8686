"""The curves of a run for its report: loss, throughput, and the memory of each rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainmaster_operator.cli.display.memory_track import MemoryTrack, Most
from trainmaster_operator.cli.display.number_words import memory, rate, seconds
from trainmaster_operator.cli.report import html_page
from trainmaster_operator.cli.report.html_page import Key
from trainmaster_operator.cli.report.metrics_file import REPLACED, Metrics, continuity, thinned
from trainmaster_operator.cli.report.svg_chart import Line, Marker, line_chart
from trainmaster_operator.cli.report.throughput import Throughput, over_time
from trainmaster_operator.planning.facts.counted_nouns import counted
from trainmaster_operator.planning.facts.job_state import JobState

MARKERS = 200
MEMORY_LINES = 8
REPLACED_POINTS = 2000
"""Maximum number of points of all stretches of steps that ran again together."""

_HOW_TO_REPORT = (
    "The script has reported no loss. A loop over trainmaster's run.steps() reports the loss of each step with "
    "run.report(loss=loss). Any other loop does so with run.report(step=step, loss=loss). In both, run is what "
    "trainmaster.init() returns."
)

_TIME_OF_STEPS = (
    "The time is that of the steps and the restarts alone, from the beginning of the first step: saves, evaluations "
    "and the start of the ranks are left out, so the axis is shorter than the duration."
)
_TIME_OF_MEMORY = "The time is counted from the first measurement, when the ranks had started, to the last one."

_RESTART = Key("marker", "", "the ranks restarted; n is the number of the round that began")


def sections(
    status: JobState,
    metrics: Metrics,
    track: MemoryTrack,
    unit: str,
    guess: float | None,
    *,
    skip_empty: bool,
    scripted: bool,
) -> Iterator[str]:
    """Yield the sections with the curves. `unit`: what the throughput counts. `guess`: the loss of a model that only
    guesses; None if unknown. `skip_empty`: leave out a curve without data instead of saying that there is none.
    `scripted`: ranks run a script of the user, which may not report any numbers."""
    causes = _causes(status, metrics)
    if metrics.has_losses or not skip_empty:
        markers = [Marker(first, number, causes[number]) for number, first in _marked(metrics)]
        yield _loss(metrics, markers, guess, scripted=scripted)
    elif scripted:
        yield html_page.section("Loss", html_page.note(_HOW_TO_REPORT))
    throughput = over_time(metrics, status.recoveries)
    if throughput.curve or not skip_empty:
        marked = {number for number, _ in _marked(metrics)}
        markers = [Marker(p.begin, p.round, causes[p.round]) for p in throughput.pauses if p.round in marked]
        yield _throughput(throughput, markers, f"{unit}/s" if any(metrics.ran_tokens) else "steps/s")
    if track.samples or not skip_empty:
        yield _memory(track)


def _marked(metrics: Metrics) -> list[tuple[int, int]]:
    """Return (round, its first step) of the restarts that are marked: the last ones."""
    return metrics.rounds[1:][-MARKERS:]


def _causes(status: JobState, metrics: Metrics) -> dict[int, str]:
    """Return a sentence about the restart that began each round, from its recovery if the status still has it."""
    recoveries = {r.round: r for r in status.recoveries}
    found = {}
    for number, first in metrics.rounds:
        r = recoveries.get(number)
        who = f" of rank {r.rank}" if r is not None and r.rank is not None else ""
        why = f"{r.cause}{who}, back after {seconds(r.totalSeconds)}" if r is not None else "a new round"
        found[number] = f"round {number} from step {first}: {why}"
    return found


def _loss(metrics: Metrics, markers: Sequence[Marker], guess: float | None, *, scripted: bool) -> str:
    lines, keys = [], [Key("line", "main", "loss")]
    most = max(4, REPLACED_POINTS // max(1, len(metrics.replaced)))
    for points in metrics.replaced:
        lines.append(Line(thinned(points, most), "replaced", "repeated in a later round"))
    curve = metrics.loss_curve()
    lines.append(Line(curve, "main"))
    if metrics.evaluations:
        lines.append(Line(thinned(metrics.evaluations), "r3", "loss of an evaluation"))
        keys.append(Key("line", "r3", "loss on the evaluation data"))
    if guess is not None and curve:
        lines.append(Line([(curve[0][0], guess), (curve[-1][0], guess)], "guess"))
        keys.append(Key("line", "guess", f"loss of a model that only guesses: about {guess:.1f}"))
    if metrics.replaced:
        only = f" (only the first {REPLACED} times are drawn)" if len(metrics.replaced) == REPLACED else ""
        keys.append(Key("line", "replaced", f"lost with a failure and run again{only}"))
    content = [line_chart(lines, "loss", "step", _integer, _short, markers), _legend(keys, markers)]
    if scripted and not metrics.has_losses:
        content.append(html_page.note(_HOW_TO_REPORT))
    if guess is not None:
        content.append(
            html_page.note(
                "The dashed line is the unigram entropy of the text: the loss of a model that guesses each byte by how "
                "often it occurs, and ignores the bytes before it. A model below the line has learned from context."
            )
        )
    if metrics.repeated:
        content.append(html_page.note(continuity(metrics)))
    return html_page.section("Loss", *content, *_only_the_last(metrics))


def _throughput(throughput: Throughput, markers: Sequence[Marker], unit: str) -> str:
    bands = [(pause.begin, pause.end) for pause in throughput.pauses if pause.end > pause.begin]
    lines = [Line(throughput.curve, "main")]
    chart = line_chart(lines, "throughput", "time", _clock, rate, markers, from_zero=True, bands=bands)
    content = [chart]
    if throughput.curve:
        content.append(html_page.note(_TIME_OF_STEPS))
    if markers:
        keys = [Key("line", "main", unit)]
        keys += [Key("box", "band", "no step is completed: the ranks restart")] if bands else []
        words = "The curve is at 0 while the ranks restart."
        if len(bands) < len(throughput.pauses):
            words += " A restart of unknown length has no width."
        content += [_legend(keys, markers), html_page.note(words)]
    return html_page.section(f"Throughput ({unit})", *content)


def _legend(keys: Sequence[Key], markers: Sequence[Marker]) -> str:
    """Return the legend. A single line without markers needs none, because the title says what it is."""
    keys = [*keys, _RESTART] if markers else keys
    return html_page.legend(keys) if len(keys) > 1 else ""


def _only_the_last(metrics: Metrics) -> Iterator[str]:
    every = len(metrics.rounds) - 1
    if every > MARKERS:
        yield html_page.note(f"Only the last {MARKERS} of {every} restarts are marked.")


def _memory(track: MemoryTrack) -> str:
    if not track.samples:
        return html_page.section("Memory by rank", '<p class="empty">No memory was recorded.</p>')
    began = track.samples[0][0]
    ranks = sorted({rank for _, sizes in track.samples for rank in sizes})
    # If there are many ranks, those that ever used the most memory are drawn.
    most = {rank: track.most.get(rank, Most()) for rank in ranks}
    peaks = {rank: max(most[rank].size, *(sizes.get(rank, 0) for _, sizes in track.samples)) for rank in ranks}
    shown = sorted(sorted(ranks, key=lambda rank: -peaks[rank])[:MEMORY_LINES])
    size, unit = (2**30, "GiB") if max(peaks.values()) >= 2 * 2**30 else (2**20, "MiB")
    lines = [
        Line(
            [(at - began, sizes[rank] / size) for at, sizes in track.samples if rank in sizes],
            f"r{i}",
            f"rank {rank}, at most {memory(peaks[rank])}",
        )
        for i, rank in enumerate(shown)
    ]
    chart = line_chart(lines, "memory", "time", _clock, lambda value: f"{value:g} {unit}", from_zero=True)
    names = [Key("line", f"r{i}", f"rank {rank} (at most {memory(peaks[rank])})") for i, rank in enumerate(shown)]
    content = [chart, html_page.legend(names), html_page.note(_TIME_OF_MEMORY)]
    if len(ranks) > len(shown):
        content.append(html_page.note(f"The {counted(len(shown), 'rank')} of {len(ranks)} that used the most memory."))
    if track.nearest() is not None:
        rows = [[str(rank), memory(peaks[rank]), most[rank].beside or "-"] for rank in shown]
        content += [
            html_page.note(track.describe_nearest()),
            html_page.table(["rank", "at most", "nearest to its limit"], rows, [True, True, False]),
        ]
    return html_page.section("Memory by rank", *content)


def _integer(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else ""


def _short(value: float) -> str:
    return f"{value:.6g}"


def _clock(value: float) -> str:
    return f"{value:g} s" if value < 100 else seconds(value)
