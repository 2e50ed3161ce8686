"""Samples that are left out: the others keep their order, at any world size, from any checkpoint."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster import data
from trainmaster.contract.config import TrainingConfig
from trainmaster.contract.sample_ranges import merged
from trainmaster.data.skipped_samples import Skips

RANGES = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=6)


def left(ranges: list[tuple[int, int]], count: int) -> list[int]:
    """The first `count` positions that no range holds, by looking at each."""
    found: list[int] = []
    position = 0
    while len(found) < count:
        if not any(first <= position < end for first, end in ranges):
            found.append(position)
        position += 1
    return found


@settings(deadline=None)
@given(RANGES, st.integers(0, 300), st.integers(0, 60))
def test_samples_take_the_positions_that_no_range_holds(
    ranges: list[tuple[int, int]], consumed: int, count: int
) -> None:
    skips = Skips(ranges)
    expected = left(ranges, consumed + count + 1)
    assert skips.position(consumed) == expected[consumed]
    pieces = skips.pieces(consumed, count)
    assert [p for start, here in pieces for p in range(start, start + here)] == expected[consumed : consumed + count]
    assert all(here > 0 for _, here in pieces)


@settings(deadline=None)
@given(RANGES, RANGES, st.integers(0, 300))
def test_what_a_checkpoint_has_consumed_stays_as_it_was_and_the_rest_is_left_out(
    own: list[tuple[int, int]], asked: list[tuple[int, int]], consumed: int
) -> None:
    before = Skips(own)
    after = before.resumed(consumed, asked)
    here = before.position(consumed)
    assert [after.position(n) for n in range(consumed)] == [before.position(n) for n in range(consumed)]
    ahead = [after.position(n) for n in range(consumed, consumed + 50)]
    assert ahead == [p for p in left([*own, *asked], here + 1000) if p >= here][:50]
    assert after.resumed(consumed, asked).ranges == after.ranges


@settings(deadline=None)
@given(RANGES, RANGES, st.integers(0, 300))
def test_a_checkpoint_is_known_to_have_seen_what_is_to_be_left_out(
    own: list[tuple[int, int]], asked: list[tuple[int, int]], consumed: int
) -> None:
    skips = Skips(own)
    unwanted = {n for first, end in asked for n in range(first, end)}
    seen = {skips.position(n) for n in range(consumed)}
    assert skips.took(consumed, asked) == bool(seen & unwanted)


@settings(deadline=None)
@given(RANGES)
def test_merged_ranges_hold_the_same_numbers_and_never_touch(ranges: list[tuple[int, int]]) -> None:
    result = merged(ranges)
    assert {n for first, end in result for n in range(first, end)} == {
        n for first, end in ranges for n in range(first, end)
    }
    assert all(a[1] < b[0] for a, b in itertools.pairwise(result))


@pytest.fixture
def source(tmp_path: Path) -> data.Source:
    (tmp_path / "a.txt").write_bytes(bytes(range(1, 256)) * 3 + b"rest")
    config = TrainingConfig.model_validate(
        {
            "model": {"options": {"context": 8, "width": 8, "heads": 2}},
            "data": {"path": str(tmp_path), "options": {"shardBytes": 64}},
            "steps": 10,
            "batch": {"global": 12},
        }
    )
    return data.build(config)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 12])
def test_any_world_size_sees_the_same_samples_though_some_are_left_out(source: data.Source, world: int) -> None:
    source.skips = Skips([(5, 9), (30, 41), (90, 110)])
    whole = [row for n in range(12) for row in source.batch(12 * n, range(12)).inputs.tolist()]
    share = 12 // world
    parts = [
        row
        for n in range(12)
        for rank in range(world)
        for row in source.batch(12 * n, range(rank * share, (rank + 1) * share)).inputs.tolist()
    ]
    assert parts == whole
    source.skips = Skips()
    plain = [row for n in range(16) for row in source.batch(12 * n, range(12)).inputs.tolist()]
    assert whole == [plain[position] for position in left([(5, 9), (30, 41), (90, 110)], 144)]


@pytest.fixture(scope="module")
def short_epochs(tmp_path_factory: pytest.TempPathFactory) -> data.Source:
    """13 windows an epoch, the last of them one target long: an epoch ends within most batches."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_bytes(bytes(range(1, 99)))
    training = {"model": {"options": {"context": 8, "width": 8, "heads": 2}}, "steps": 1, "batch": {"global": 2}}
    return data.build(TrainingConfig.model_validate({**training, "data": {"path": str(folder)}}))


@settings(deadline=None)
@given(RANGES, st.integers(0, 300), st.integers(1, 40))
def test_the_tokens_counted_ahead_are_those_of_the_batch(
    short_epochs: data.Source, ranges: list[tuple[int, int]], consumed: int, count: int
) -> None:
    short_epochs.skips = Skips(ranges)
    assert short_epochs.valid_tokens(consumed, count) == short_epochs.batch(consumed, range(count)).valid_tokens
