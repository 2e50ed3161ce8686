"""The stopwatch follows a page to the letter, and writes into it how long each step took."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from e2e import stopwatch
from e2e.stopwatch import (
    AGAIN,
    END,
    FROM_NOTHING,
    Step,
    StopwatchError,
    begin_of,
    machine,
    measure,
    start_of_this_machine,
    steps_of,
    table,
    with_table,
)

PAGE = f"""\
<!-- illustrative: e2e/stopwatch.py runs it and measures each step: a cluster -->
```console
$ export WHERE=here
$ test \\
    "$WHERE" = here
its output
```

<!-- illustrative: somebody else's -->
```console
$ false
```

<!-- illustrative: e2e/stopwatch.py runs it and measures each step: the chart -->
```console
$ test "$WHERE" = here
```

{begin_of(FROM_NOTHING)}not yet
{END}

{begin_of(AGAIN)}nor this
{END}
after
"""


def test_the_blocks_of_a_page_are_run_in_their_order_and_share_what_they_export() -> None:
    said: list[str] = []
    times = measure(steps_of(PAGE), os.environ, said.append)
    assert [name for name, _ in times] == ["a cluster", "the chart"]
    assert said[0] == "a cluster ..."
    assert said[1].startswith("a cluster: ")


def test_a_command_that_fails_ends_it_with_the_name_of_the_step() -> None:
    steps = [Step("one", "false; true"), Step("two", "exit 9")]
    with pytest.raises(StopwatchError, match=r"^the step 'one' failed with exit code 1$"):
        measure(steps, os.environ, lambda words: None)


@pytest.mark.parametrize(
    ("start", "replaced", "stays"), [(FROM_NOTHING, "not yet", "nor this"), (AGAIN, "nor this", "not yet")]
)
def test_the_times_stand_in_the_page_as_minutes_and_nothing_else_of_it_changes(
    start: str, replaced: str, stays: str
) -> None:
    written = with_table(PAGE, table([("a cluster", 90.0), ("the chart", 30.0)], "On 4 cores."), start)
    assert "| a cluster | 1.5 |\n| the chart | 0.5 |\n| all of it | 2.0 |\n\nOn 4 cores.\n" in written
    assert replaced not in written
    assert stays in written
    before, _, _ = PAGE.partition(begin_of(start))
    assert written.startswith(before + begin_of(start))
    assert written.endswith(f"{END}\nafter\n")
    assert with_table(written, "", start) == with_table(PAGE, "", start)


def test_a_cache_counts_as_that_of_an_earlier_run_once_all_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images: dict[str, str] = {}
    monkeypatch.setattr(stopwatch, "CACHE", tmp_path)
    monkeypatch.setattr(stopwatch, "BIN", tmp_path / "bin")
    monkeypatch.setattr(stopwatch, "LAYOUT", SimpleNamespace(digests=lambda: images))
    (tmp_path / "lock").touch()  # as `make cluster-down` leaves it
    assert start_of_this_machine() == FROM_NOTHING
    (tmp_path / "bin").mkdir()
    for program in ("kubernetes", "helm"):
        (tmp_path / "bin" / f".{program}").touch()
    with pytest.raises(StopwatchError, match=f"remove {tmp_path} and try again"):
        start_of_this_machine()
    images.update(dict.fromkeys(stopwatch.BUILT, "sha256:1"))
    assert start_of_this_machine() == AGAIN


def test_a_remark_about_the_machine_stands_behind_where_the_times_come_from() -> None:
    assert machine(AGAIN).endswith(f" cores, {AGAIN}.")
    assert machine(FROM_NOTHING, "It was busy.").endswith(f" cores, {FROM_NOTHING}. It was busy.")


@pytest.mark.parametrize(
    ("page", "sentence"),
    [("nothing\n", "the page has no block"), (PAGE.replace("-->\n```console", "-->\n\n```console"), "directly below")],
)
def test_a_page_without_such_blocks_is_told(page: str, sentence: str) -> None:
    with pytest.raises(StopwatchError, match=sentence):
        steps_of(page)


def test_the_page_that_people_read_has_steps_and_a_place_for_their_times() -> None:
    page = stopwatch.PAGE.read_text()
    names = [step.name for step in steps_of(page)]
    assert names == ["a cluster", "the chart", "the first step of a job", "a recovery"]
    assert with_table(page, "x\n", FROM_NOTHING) != with_table(page, "x\n", AGAIN)
