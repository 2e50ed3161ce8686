"""report.html: one page, no outside references, everything escaped, bounded at any length."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.cli.runs import CLOSED, CRASH, SHRUNK, SUCCEEDED, failed_run, long_run, output_folder, status
from trainmaster_operator.cli.display.memory_track import LIMIT, MemoryTrack
from trainmaster_operator.cli.main import main
from trainmaster_operator.cli.report.goodput_table import parts
from trainmaster_operator.cli.report.html_page import STYLE
from trainmaster_operator.cli.report.metrics_file import Metrics
from trainmaster_operator.cli.report.run_report import render, write
from trainmaster_operator.cli.report.svg_chart import SCALE, Line, Marker, line_chart, ticks
from trainmaster_operator.planning.facts.job_state import Condition, JobPhase


class Page(HTMLParser):
    """Checks that tags nest; collects text and references."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.references: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "data", "xlink:href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        return

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page(out: Path) -> tuple[str, str]:
    html = write(out).read_text()
    parsed = Page(html)
    assert parsed.references == []
    assert not re.search(r"https?://|url\(|@import|<script", html)
    return html, " ".join(" ".join(parsed.text).split())


def with_training(out: Path, **fields: Any) -> None:
    """Change `spec.training` of a run."""
    resource = yaml.safe_load((out / "status.yaml").read_text())
    resource["spec"]["training"].update(fields)
    (out / "status.yaml").write_text(yaml.safe_dump(resource))


def test_the_report_tells_how_the_run_went(tmp_path: Path) -> None:
    _, text = page(output_folder(tmp_path / "out"))
    for words in (
        "Succeeded",
        "100 / 100",
        "90.5 s",
        "dpReplicate 2 x dpShard 2",
        "9 steps ran twice; each had bit for bit the same loss both times.",
        "round 2 from step 51: Crash of rank 2, back after 287 ms",
        "restart in place",
        "peer",
        "rendezvous",
        "rank 3 (at most",
        "killed by SIGKILL",
    ):
        assert words in text


def test_the_report_tells_where_the_time_went(tmp_path: Path) -> None:
    _, text = page(output_folder(tmp_path / "out"))
    assert "Where the time went" in text
    for words in ("steps 81.0 s 92.0 %", "Crash 4.5 s 5.1 %", "Checkpoint 1.5 s 1.7 %", "Resume 1.0 s 1.1 %"):
        assert words in text


def test_goodput_is_explained_at_its_number_and_where_the_time_went(tmp_path: Path) -> None:
    _, text = page(output_folder(tmp_path / "out"))
    assert "goodput 0.92 share of the time that went into steps that count" in text
    table = text.index("Checkpoint 1.5 s 1.7 %")
    assert 0 < text.index("Goodput is the share of the time since the first step", table) - table < 200


def test_the_rungs_that_a_run_needed_are_explained_below_its_recoveries_and_no_others(tmp_path: Path) -> None:
    final = SUCCEEDED.model_copy(update={"recoveries": [CLOSED, SHRUNK]})
    _, text = page(output_folder(tmp_path / "out", final))
    recoveries = text[text.index("Recoveries") :]
    assert "Each larger one is the next rung of the ladder" in recoveries
    assert "restart in place the pods stay, and the processes of all ranks start again." in recoveries
    assert "fewer pods the job continues with fewer pods." in recoveries
    assert "all pods are replaced" not in recoveries


@pytest.mark.parametrize("column", ["round", "reached", "resumed", "source", "steps lost", "total"])
def test_the_columns_of_the_recoveries_are_explained(tmp_path: Path, column: str) -> None:
    html, _ = page(output_folder(tmp_path / "out"))
    assert f"<dt>{column}</dt><dd>" in html


def test_the_loss_of_a_model_that_guesses_is_drawn_and_explained(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("abcdefgh" * 100)  # 8 letters, all equally often: ln 8 = 2.079
    out = output_folder(tmp_path / "out")
    _, before = page(out)
    with_training(out, data={"path": str(tmp_path / "text")})
    html, text = page(out)
    assert "loss of a model that only guesses: about 2.1" in text
    assert "the loss of a model that guesses each byte by how often it occurs" in text
    (line,) = re.findall(r'<polyline class="line guess" points="0.0,(\d+) 1000.0,(\d+)">', html)
    # The axis goes from 2 to 5.
    assert line[0] == line[1] == f"{1000 * (1 - (math.log(8) - 2) / 3):.0f}"
    assert "guesses" not in before


@pytest.mark.parametrize("phase", [phase for phase in JobPhase if phase is not JobPhase.SUCCEEDED])
def test_the_text_is_read_again_only_after_a_success(
    tmp_path: Path, phase: JobPhase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "trainmaster_operator.cli.report.run_report.guessing_loss", lambda training: pytest.fail("it was read")
    )
    page(output_folder(tmp_path / "out", SUCCEEDED.model_copy(update={"phase": phase})))


def test_markers_have_a_legend_in_both_charts(tmp_path: Path) -> None:
    _, text = page(output_folder(tmp_path / "out"))
    legend = "n the ranks restarted; n is the number of the round that began"
    assert text.count(legend) == 2
    _, without = page(output_folder(tmp_path / "calm", steps=1))
    assert legend not in without


def test_the_recovery_is_visible_in_the_throughput_chart(tmp_path: Path) -> None:
    html, text = page(output_folder(tmp_path / "out"))
    chart = html[html.index('aria-label="throughput"') :]
    (left, width) = re.findall(r'<rect class="band" x="([\d.]+)" y="0" width="([\d.]+)"', chart)[0]
    # 59 steps of 50 ms, then the recovery of 287 ms, of which 50 ms are the first step; 5.687 s in all.
    assert float(left) == pytest.approx(1000 * 2.95 / 5.687, abs=0.1)
    assert float(width) == pytest.approx(1000 * 0.237 / 5.687, abs=0.1)
    curve = re.findall(r'<polyline class="line main" points="([^"]+)"', chart)[0].split()
    zero = [float(x) for x, y in (point.split(",") for point in curve) if y == "1000"]
    assert zero == pytest.approx([float(left), float(left) + float(width)], abs=0.11)
    assert "no step is completed: the ranks restart" in text


def test_every_chart_is_well_formed_and_stays_inside_its_frame(tmp_path: Path) -> None:
    html, _ = page(output_folder(tmp_path / "out"))
    charts = [
        ElementTree.fromstring(svg) for svg in re.findall(r'<div class="(?:chart|bars)">(<svg.*?</svg>)</div>', html)
    ]
    assert len(charts) == 5
    for chart in charts:
        for curve in chart.iter("polyline"):
            for point in curve.attrib["points"].split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= SCALE
                assert 0 <= y <= SCALE
        for part in chart.iter("rect"):
            if "part" in part.attrib.get("class", ""):
                right = float(part.attrib["x"].rstrip("%")) + float(part.attrib["width"].rstrip("%"))
                assert right <= 100.01


def test_a_failed_run_shows_its_cause_its_last_words_and_its_log_before_everything_else(tmp_path: Path) -> None:
    out = failed_run(tmp_path / "out")
    _, text = page(out)
    order = [
        "Failed",
        "rank 2: Crash after step 59: exit code 1: ValueError: the weights of layer 7 are missing",
        "a third try would not help",
        "The last words of rank 2 loading layer 6",
        'raise ValueError("the weights of layer 7 are missing")',
        f"The log of rank 2: {out}/logs/tiny-worker-2-0.log",
        "restarts",
        "The job",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert "I am another rank" not in text
    assert text.count("Traceback (most recent call last)") == 1


def test_a_failed_run_has_no_empty_charts(tmp_path: Path) -> None:
    html, text = page(failed_run(tmp_path / "out"))
    assert "recorded" not in text
    assert 'class="chart"' not in html


def test_a_failed_run_keeps_the_charts_that_have_something(tmp_path: Path) -> None:
    out = output_folder(tmp_path / "out", status(JobPhase.FAILED, lastFailure=CRASH))
    _, text = page(out)
    assert text.index("Why it failed") < text.index("Loss") < text.index("Throughput") < text.index("Memory")


def test_a_traceback_that_the_log_lacks_is_shown(tmp_path: Path) -> None:
    failure = CRASH.model_copy(update={"traceback": "Traceback:\nValueError: <b>42</b> & more"})
    out = output_folder(tmp_path / "out", status(JobPhase.FAILED, lastFailure=failure))
    html, text = page(out)
    assert "ValueError: <b>42</b> & more" in text
    assert "<b>42" not in html


def test_the_whole_message_of_the_failure_that_ended_a_run_is_shown_once(tmp_path: Path) -> None:
    message = "the same failure came 3 times. " * 25 + "Add the rule {action: Fail}"
    failure = CRASH.model_copy(update={"message": message})
    cut = Condition(type="Failed", status="True", reason="Crash", message=f"rank 2: {message}"[:512])
    out = output_folder(tmp_path / "out", status(JobPhase.FAILED, lastFailure=failure, conditions=[cut]))
    _, text = page(out)
    assert text.count(message) == 1
    assert text.count("the same failure came 3 times.") == 25


def test_a_line_of_a_log_without_end_does_not_fill_the_page(tmp_path: Path) -> None:
    out = failed_run(tmp_path / "out")
    (out / "logs" / "tiny-worker-2-0.log").write_text("[rank 2] " + "x" * 100_000 + "\n")
    assert len(write(out).read_text()) < 30_000


def test_a_run_that_failed_without_a_failure_of_a_rank_says_why(tmp_path: Path) -> None:
    condition = Condition(type="Failed", status="True", reason="Unschedulable", message="no node has 8 GPUs")
    out = output_folder(tmp_path / "out", status(JobPhase.FAILED, lastFailure=None, conditions=[condition]))
    _, text = page(out)
    assert text.index("Why it failed no node has 8 GPUs") < text.index("restarts")


def test_the_last_failure_of_a_run_that_went_on_comes_after_its_curves(tmp_path: Path) -> None:
    _, text = page(output_folder(tmp_path / "out"))
    assert text.index("Throughput") < text.index("The last failure rank 2: Crash after step 59")


def test_the_report_of_a_run_that_was_stopped_says_how_to_continue_it(tmp_path: Path) -> None:
    words = "The run was stopped. Nothing was saved yet. To start it again from the first step, give the same"
    _, text = page(output_folder(tmp_path / "stopped", SUCCEEDED.model_copy(update={"phase": JobPhase.SUSPENDED})))
    assert text.index(words) < text.index("restarts")
    assert words not in page(output_folder(tmp_path / "ended"))[1]


def test_paper_is_white_whatever_the_screen_is() -> None:
    assert STYLE.count("prefers-color-scheme") == STYLE.count("@media screen and (prefers-color-scheme: dark)") == 1


def test_what_a_person_named_is_escaped(tmp_path: Path) -> None:
    html, _ = page(output_folder(tmp_path / "out", name="<script>alert(1)</script>"))
    assert "alert(1)" in html
    assert "<script>" not in html


@pytest.mark.parametrize("phase", list(JobPhase))
def test_a_run_that_has_written_nothing_yet_has_a_report_too(tmp_path: Path, phase: JobPhase) -> None:
    out = output_folder(tmp_path / "out", SUCCEEDED.model_copy(update={"phase": phase, "recoveries": []}))
    (out / "metrics.jsonl").unlink()
    (out / "memory.json").write_text("torn")
    _, text = page(out)
    assert ("No loss was recorded." in text) == ("No memory was recorded." in text) == (phase is not JobPhase.FAILED)


@pytest.mark.parametrize("training", [{}, {"data": {}, "batch": {"global": 8}}])
def test_a_report_of_a_script_without_losses_says_how_a_script_reports_them(training: dict[str, Any]) -> None:
    spec = {"framework": "PyTorch", "workers": {"replicas": 2}, "training": training}
    resource = {"metadata": {"name": "x", "namespace": "default"}, "spec": spec, "status": {}}
    html = render(resource, Metrics(), MemoryTrack(), Path("out"))
    assert ("run.report(loss=loss)" in html) == (not training)


def test_the_size_of_the_report_is_bounded(tmp_path: Path) -> None:
    out = long_run(tmp_path / "out", steps=30_000, restarts=200)
    html, text = page(out)
    assert len(html) < 200_000
    assert "The last 16 of 200 restarts." in text
    labels = re.findall(r'text-anchor="middle">([\d-]+)</text></svg>', html[: html.index("Throughput")])
    assert labels[0].startswith("2-")
    assert labels[-1].endswith("-201")
    assert 2 < len(labels) < 20


def test_the_report_can_be_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = output_folder(tmp_path / "out")
    assert main(["report", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out / "report.html")
    assert (out / "report.html").is_file()


def test_a_chart_of_one_point_or_of_equal_values_has_axes() -> None:
    for points in ([(1.0, 2.0)], [(1.0, 0.0), (2.0, 0.0)]):
        ElementTree.fromstring(line_chart([Line(points, "main")], "x", "step", str, str))


def test_markers_that_are_close_to_each_other_share_a_label() -> None:
    markers = [Marker(x, number, f"round {number}") for number, x in enumerate((1.0, 50.0, 50.5, 51.0, 99.0), start=2)]
    chart = line_chart([Line([(0.0, 1.0), (100.0, 2.0)], "main")], "x", "step", str, str, markers)
    assert re.findall(r'text-anchor="middle">([\d-]+)</text></svg>', chart) == ["2", "3-5", "6"]
    assert "<title>round 3\nround 4\nround 5</title>" in chart


def test_ticks_are_round_and_span_the_range() -> None:
    assert ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.13, 0.87, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    for low, high in ((1e-9, 3e-9), (-5, 5), (0, 1e12), (2.1, 2.1000001)):
        found = ticks(low, high, 5)
        assert found[0] <= low + 1e-15
        assert found[-1] >= high - 1e-9 * abs(high)
        assert 2 <= len(found) <= 14


def test_memory_over_time_stays_bounded_and_survives_a_restart(tmp_path: Path) -> None:
    track = MemoryTrack()
    for second in range(20_000):
        track.add(float(second), [{"rank": 0, "rss_bytes": 100 + second, "device_bytes": 0}])
    assert len(track.samples) <= LIMIT
    assert track.samples[-1][0] >= 19_000
    track.write(tmp_path / "memory.json")
    again = MemoryTrack.read(tmp_path / "memory.json")
    assert again.samples == track.samples
    assert again.interval_s == track.interval_s


def looked_at(rank: int, **fields: int) -> dict[str, int]:
    return {"rank": rank, "rss_bytes": 2**20, "rss_peak_bytes": 2**30, "device_bytes": 0, **fields}


def test_the_rank_that_came_nearest_to_its_limit_is_named(tmp_path: Path) -> None:
    track = MemoryTrack()
    container = {"container_bytes": 3 * 2**30, "container_limit_bytes": 4 * 2**30}
    track.add(1.0, [looked_at(0, **container), looked_at(1, **container, rss_peak_bytes=2**31)])
    # Later it has less: what it came to stays.
    track.add(2.0, [looked_at(number, container_bytes=2**30, container_limit_bytes=4 * 2**30) for number in (0, 1)])
    assert track.describe_nearest() == "Rank 1 came nearest to its limit: 3 GiB of its container's 4 GiB (75%)."
    device = {"device_bytes": 2**20, "device_peak_bytes": 72 * 2**30, "device_limit_bytes": 80 * 2**30}
    track.add(3.0, [looked_at(2, **device, **container)])
    assert track.describe_nearest() == "Rank 2 came nearest to its limit: 72 GiB of its device's 80 GiB (90%)."
    out = output_folder(tmp_path / "out")
    track.write(out / "memory.json")
    assert MemoryTrack.read(out / "memory.json").most == track.most
    _, text = page(out)
    assert track.describe_nearest() in text
    assert "1 2 GiB 3 GiB of its container's 4 GiB (75%)" in text
    assert "rank 2 (at most 72 GiB)" in text


def test_without_a_limit_no_rank_is_near_to_it(tmp_path: Path) -> None:
    track = MemoryTrack()
    track.add(1.0, [looked_at(0, container_bytes=2**30), {"rank": 1, "rss_bytes": 5}])  # the second is an older agent's
    assert track.describe_nearest() == ""
    out = output_folder(tmp_path / "out")
    track.write(out / "memory.json")
    _, text = page(out)
    assert "nearest to its limit" not in text
    assert "rank 0 (at most 1 GiB)" in text
    assert "rank 1 (at most 5 B)" in text


def test_images_are_counted_as_images(tmp_path: Path) -> None:
    out = output_folder(tmp_path / "out")
    with_training(out, data={"source": "images", "path": "/data/images"})
    _, text = page(out)
    assert "images/s" in text
    assert "tokens/s" not in text


def test_nothing_is_said_of_losses_that_a_script_never_told(tmp_path: Path) -> None:
    final = SUCCEEDED.model_copy(update={"progress": SUCCEEDED.progress.model_copy(update={"loss": ""})})
    out = output_folder(tmp_path / "out", final)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    (out / "metrics.jsonl").write_text("".join(json.dumps({**line, "loss": None}) + "\n" for line in lines))
    _, text = page(out)
    assert "9 steps ran twice; none reported a loss, so nothing can be compared." in text
    assert "loss nan" not in text


def test_what_is_lost_to_no_failure_is_explained_below_where_the_time_went(tmp_path: Path) -> None:
    _, text = page(output_folder(tmp_path / "out"))
    table = text.index("Where the time went")
    assert "Resume The run was stopped and started again" in text[table:]
    assert "Checkpoint Training stood still for a save." in text[table:]
    assert "Training stood still for an evaluation." not in text
    assert parts(SUCCEEDED.model_copy(update={"firstStepAt": "2026-11-01T00:00:00.000Z"})) == parts(SUCCEEDED)
