"""report.html: one page, no outside references, everything escaped, bounded at any length."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from tests.cli.runs import CRASH, SUCCEEDED, output_folder, status
from trainmaster_operator.cli.chart import Line, line_chart, ticks
from trainmaster_operator.cli.main import main
from trainmaster_operator.cli.memory import LIMIT, MemoryTrack
from trainmaster_operator.cli.report import write
from trainmaster_operator.planning.state import JobPhase


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
    for words in ("steps 81.0 s 92.0 %", "Crash 4.5 s 5.1 %", "Checkpoint 1.5 s 1.7 %", "Other 1.0 s 1.1 %"):
        assert words in text


def test_every_chart_is_well_formed_and_stays_inside_its_frame(tmp_path: Path) -> None:
    html, _ = page(output_folder(tmp_path / "out"))
    charts = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]
    assert len(charts) >= 4
    for chart in charts:
        _, _, width, height = map(float, chart.attrib["viewBox"].split())
        for curve in chart.iter("polyline"):
            for point in curve.attrib["points"].split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= width
                assert 0 <= y <= height


def test_a_failed_job_shows_its_traceback_first(tmp_path: Path) -> None:
    failure = CRASH.model_copy(update={"traceback": "Traceback:\nValueError: <b>42</b> & more"})
    out = output_folder(tmp_path / "out", status(JobPhase.FAILED, lastFailure=failure))
    html, text = page(out)
    assert "ValueError: <b>42</b> & more" in text
    assert "<b>42" not in html
    assert text.index("Why it failed") < text.index("Throughput")
    assert "What it printed: logs/tiny-worker-2-0.log beside this page." in text


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
    assert "No loss was recorded." in text
    assert "No memory was recorded." in text


def test_the_size_of_the_report_is_bounded(tmp_path: Path) -> None:
    short = write(output_folder(tmp_path / "short", steps=2_000)).stat().st_size
    long = write(output_folder(tmp_path / "long", steps=40_000)).stat().st_size
    assert long < 1.5 * short


def test_the_report_can_be_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = output_folder(tmp_path / "out")
    assert main(["report", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out / "report.html")
    assert (out / "report.html").is_file()


def test_a_chart_of_one_point_or_of_equal_values_has_axes() -> None:
    for points in ([(1.0, 2.0)], [(1.0, 0.0), (2.0, 0.0)]):
        ElementTree.fromstring(line_chart([Line(points, "main")], "x", "step", str, str))


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
    assert track.told() == "Rank 1 came nearest to its limit: 3 GiB of its container's 4 GiB (75%)."
    device = {"device_bytes": 2**20, "device_peak_bytes": 72 * 2**30, "device_limit_bytes": 80 * 2**30}
    track.add(3.0, [looked_at(2, **device, **container)])
    assert track.told() == "Rank 2 came nearest to its limit: 72 GiB of its device's 80 GiB (90%)."
    out = output_folder(tmp_path / "out")
    track.write(out / "memory.json")
    assert MemoryTrack.read(out / "memory.json").most == track.most
    _, text = page(out)
    assert track.told() in text
    assert "1 2 GiB 3 GiB of its container's 4 GiB (75%)" in text
    assert "rank 2 (at most 72 GiB)" in text


def test_without_a_limit_no_rank_is_near_to_it(tmp_path: Path) -> None:
    track = MemoryTrack()
    track.add(1.0, [looked_at(0, container_bytes=2**30), {"rank": 1, "rss_bytes": 5}])  # the second is an older agent's
    assert track.told() == ""
    out = output_folder(tmp_path / "out")
    track.write(out / "memory.json")
    _, text = page(out)
    assert "nearest to its limit" not in text
    assert "rank 0 (at most 1 GiB)" in text
    assert "rank 1 (at most 5 B)" in text


def test_images_are_counted_as_images(tmp_path: Path) -> None:
    out = output_folder(tmp_path / "out")
    resource = yaml.safe_load((out / "status.yaml").read_text())
    resource["spec"]["training"]["data"]["source"] = "images"
    (out / "status.yaml").write_text(yaml.safe_dump(resource))
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
