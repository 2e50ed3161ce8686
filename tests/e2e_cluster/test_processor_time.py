"""What the end-to-end tests say of the processors, and limits that don't run while the machine is held up."""

from __future__ import annotations

import pytest

from e2e import processor_time
from e2e.processor_time import MOST, Limit, Ticks

LINES = "cpu  100 20 50 700 30 4 6 90 5 5\ncpu0 1 2 3 4 5 6 7 8 9 10\n"


def test_the_kernels_counts_are_read_by_their_order() -> None:
    assert Ticks.parse(LINES) == Ticks(used=180, idle=700, waited=30, stolen=90)


def test_two_readings_make_a_sentence() -> None:
    before = Ticks.parse(LINES)
    after = Ticks(used=before.used + 60, idle=before.idle + 20, waited=before.waited + 5, stolen=before.stolen + 15)
    assert (after - before).describe() == (
        "the processors worked for 60 % of the time; for 15 % the host gave them to other machines, and for 5 % they "
        "waited for the disk"
    )


def test_the_counts_of_this_machine_grow() -> None:
    before = processor_time.read()
    after = processor_time.read()
    assert 0 < before.total <= after.total


@pytest.mark.parametrize(
    ("meanwhile", "left_s"),
    [
        (Ticks(used=0, idle=200, waited=0, stolen=0), 50),  # an idle machine: each second counts
        (Ticks(used=200, idle=0, waited=0, stolen=0), 50),  # a busy one: limits are made for that
        (Ticks(used=100, idle=0, waited=0, stolen=100), 55),  # half of the time went to others
        (Ticks(used=100, idle=60, waited=20, stolen=20), 52),
        (Ticks(used=0, idle=0, waited=100, stolen=100), 60 - 10 / MOST),  # a limit ends in any case
        (Ticks(used=0, idle=0, waited=0, stolen=0), 50),  # the kernel has counted nothing yet
    ],
)
def test_a_limit_does_not_run_while_the_machine_is_held_up(meanwhile: Ticks, left_s: float) -> None:
    before = Ticks(used=1000, idle=2000, waited=300, stolen=400)
    after = Ticks(*map(sum, zip(before, meanwhile, strict=True)))
    clock, counts = iter([7.0, 17.0]), iter([before, after])
    limit = Limit(60.0, lambda: next(clock), lambda: next(counts))
    assert limit.left_s() == pytest.approx(left_s)
