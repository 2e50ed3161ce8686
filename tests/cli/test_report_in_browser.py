"""The report as a browser draws it: wide and narrow, light and dark."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.cli.browser import Look, chromium, measure
from tests.cli.runs import CLOSED, CRASH, SHRUNK, SUCCEEDED, failed_run, long_run, output_folder, status
from trainmaster_operator.cli.report.run_report import write
from trainmaster_operator.planning.facts.job_state import JobPhase

pytestmark = pytest.mark.skipif(chromium() is None, reason="chromium is not installed")

WIDE, NARROW = 1280, 400
PAGES = ("recovered", "failed", "failed late", "long")
LOOKS = [Look(*look) for look in itertools.product(PAGES, (WIDE, NARROW), ("light", "dark"))]

every_look = pytest.mark.parametrize("look", LOOKS, ids=lambda look: f"{look.page}-{look.width}-{look.scheme}")


def _pages(folder: Path) -> dict[str, str]:
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 9)
    shrunk = SHRUNK.model_copy(update={"resumedStep": 79, "totalSeconds": 4.0, "clock": CLOSED.clock})
    recovered = output_folder(folder / "recovered", SUCCEEDED.model_copy(update={"recoveries": [CLOSED, shrunk]}))
    late = CRASH.model_copy(update={"message": "x" * 300, "traceback": "Traceback:\n" + "in_a_long_name." * 40})
    outs = {
        "recovered": recovered,
        "failed": failed_run(folder / "failed"),
        "failed late": output_folder(folder / "late", status(JobPhase.FAILED, lastFailure=late), name="a-" * 120 + "z"),
        "long": long_run(folder / "long", steps=4000, restarts=200),
    }
    return {name: write(out).read_text() for name, out in outs.items()}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[Look, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("pages")
    return measure(_pages(folder), LOOKS, folder)


Found = dict[Look, dict[str, Any]]


@every_look
def test_nothing_overflows_the_page_sideways(found: Found, look: Look) -> None:
    assert found[look]["width"] == look.width
    assert found[look]["scrollWidth"] == look.width
    assert found[look]["overflowing"] == []


@every_look
def test_every_text_of_a_chart_is_large_enough_to_read(found: Found, look: Look) -> None:
    sizes = found[look]["sizes"]
    assert bool(sizes) == (look.page != "failed")
    assert [text for size, text in sizes if size < 11] == []


@every_look
def test_no_text_of_a_chart_lies_on_another(found: Found, look: Look) -> None:
    assert found[look]["overlapping"] == []


@every_look
def test_every_text_stands_out_from_its_background(found: Found, look: Look) -> None:
    contrast, text = found[look]["contrast"]
    assert contrast >= 4.5, text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_as_light_or_dark_as_the_screen(found: Found, scheme: str) -> None:
    background = found[Look("recovered", WIDE, scheme)]["background"]
    assert (background == "rgb(246, 247, 249)") == (scheme == "light")


@every_look
def test_a_table_says_that_it_scrolls_where_it_does_and_nowhere_else(found: Found, look: Look) -> None:
    for table in found[look]["tables"]:
        assert table["says"] == table["scrolls"]
    scroll = any(table["scrolls"] for table in found[look]["tables"])
    assert scroll == (look.width == NARROW and look.page in ("recovered", "long"))


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_page_of_a_failed_run_begins_with_cause_last_words_and_log(found: Found, width: int) -> None:
    lines = [line for line in found[Look("failed", width, "light")]["text"].split("\n") if line]
    assert lines[:2] == ["tiny", "Failed"]
    assert lines[3:6] == [
        "Why it failed",
        "rank 2: Crash after step 59: exit code 1: ValueError: the weights of layer 7 are missing",
        "pod tiny-worker-2-0 · exit code 1 · round 1",
    ]
    assert lines[7:9] == ["The last words of rank 2", "loading layer 6"]
    assert lines[12] == "ValueError: the weights of layer 7 are missing"
    assert lines[13].startswith("The log of rank 2: /")
    assert lines[13].endswith("/logs/tiny-worker-2-0.log")
