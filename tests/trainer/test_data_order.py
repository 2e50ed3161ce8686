"""The order of samples: bijections, epochs, shards."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.data.sample_order import Order, Permutation

sizes = st.integers(1, 5000)
seeds = st.integers(0, 2**63 - 1)


@settings(deadline=None)
@given(sizes, st.text(max_size=20))
def test_a_permutation_hits_each_number_once(size: int, key: str) -> None:
    everything = np.arange(size, dtype=np.uint64)
    assert np.array_equal(np.sort(Permutation(size, key)(everything)), everything)


@settings(deadline=None)
@given(st.integers(1, 2**62), st.text(max_size=20), st.data())
def test_the_inverse_of_a_permutation_leads_back_at_any_size(size: int, key: str, data: st.DataObject) -> None:
    permutation = Permutation(size, key)
    values = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)), np.uint64)
    there = permutation(values)
    assert (there < size).all()
    assert (permutation.inverse(there) == values).all()


@settings(deadline=None)
@given(st.integers(1, 600), st.integers(1, 700), seeds, st.integers(0, 3))
def test_each_epoch_holds_each_sample_once(samples: int, shard: int, seed: int, epoch: int) -> None:
    order = Order(samples, shard, seed)
    assert np.array_equal(np.sort(order(epoch * samples, samples)), np.arange(samples))


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 400), seeds, st.integers(0, 2000), st.lists(st.integers(0, 40), max_size=6))
def test_a_sample_depends_on_its_position_alone(
    samples: int, shard: int, seed: int, start: int, parts: list[int]
) -> None:
    order = Order(samples, shard, seed)
    at_once = order(start, sum(parts)).tolist()
    in_parts = []
    for part in parts:
        in_parts += Order(samples, shard, seed)(start + len(in_parts), part).tolist()
    assert in_parts == at_once


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 400), seeds, st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 40))))
def test_what_was_asked_before_makes_no_difference(
    samples: int, shard: int, seed: int, asked: list[tuple[int, int]]
) -> None:
    order = Order(samples, shard, seed)
    for start, count in asked:
        assert order(start, count).tolist() == Order(samples, shard, seed)(start, count).tolist()


@settings(deadline=None)
@given(st.integers(1, 50), st.integers(1, 20), seeds)
def test_an_epoch_reads_one_shard_after_another(samples: int, shard: int, seed: int) -> None:
    visited = [sample // shard for sample in Order(samples, shard, seed)(0, samples).tolist()]
    changes = sum(a != b for a, b in itertools.pairwise(visited))
    assert changes == len(set(visited)) - 1


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    order = Order(100, 1000, 1)
    first, second, other = order(0, 100), order(100, 100), Order(100, 1000, 2)(0, 100)
    assert (first != second).any()
    assert (first != other).any()


def test_the_order_never_changes_between_releases() -> None:
    assert Order(1000, 64, 5)(998, 5).tolist() == RECORDED


RECORDED = [509, 464, 797, 809, 770]


@settings(deadline=None)
@given(st.integers(1, 600), st.integers(1, 700), seeds, st.integers(0, 3))
def test_the_last_sample_is_found_where_the_order_has_it(samples: int, shard: int, seed: int, epoch: int) -> None:
    order = Order(samples, shard, seed)
    assert order(epoch * samples + order.last(epoch), 1).tolist() == [samples - 1]


def test_a_thread_that_asks_for_another_epoch_meanwhile_changes_no_answer() -> None:
    order, of_next = Order(100, 30, 1), Order(100, 30, 1)
    expected = order.last(0)

    class Interrupted(tuple):  # type: ignore[type-arg]
        def __getitem__(self, index: Any) -> Any:
            order._last = 1, *of_next._of_epoch(1)  # another thread, at the worst moment
            return tuple.__getitem__(self, index)

    assert of_next.last(1) != expected
    order._last = Interrupted(order._last or ())
    assert order.last(0) == expected
