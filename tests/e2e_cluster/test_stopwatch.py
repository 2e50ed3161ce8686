"""The stopwatch follows a page to the letter, and writes into it how long each step took."""

from __future__ import annotations

import os

import pytest

from e2e import stopwatch
from e2e.stopwatch import BEGIN, END, Step, StopwatchError, measure, steps_of, table, with_table

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

{BEGIN}not yet
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


def test_the_times_stand_in_the_page_as_minutes_and_nothing_else_of_it_changes() -> None:
    written = with_table(PAGE, table([("a cluster", 90.0), ("the chart", 30.0)], "On 4 cores."))
    assert "| a cluster | 1.5 |\n| the chart | 0.5 |\n| all of it | 2.0 |\n\nOn 4 cores.\n" in written
    assert "not yet" not in written
    before, _, _ = PAGE.partition(BEGIN)
    assert written.startswith(before + BEGIN)
    assert written.endswith(f"{END}\nafter\n")
    assert with_table(written, "") == with_table(PAGE, "")


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
    assert with_table(page, "x\n")
