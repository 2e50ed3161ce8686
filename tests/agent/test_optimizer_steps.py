"""How the steps of several optimizers of one process are numbered."""

from __future__ import annotations

import types
from typing import Any

import pytest

from trainmaster.rank.optimizer_steps import OptimizerSteps, only_fills


class Adam:
    """An optimizer whose state counts its steps, some of them before this process."""

    def __init__(self, before: int = 0) -> None:
        self.state: dict[str, Any] = {"weight": {"step": before}} if before else {}

    def step(self, steps: OptimizerSteps) -> int:
        expected = steps.next_number(self)
        self.state["weight"] = {"step": self.state.get("weight", {"step": 0})["step"] + 1}
        number = steps.take(self)
        assert number == expected, "a fault is asked for by the number that the step then has"
        return number


class Sgd(Adam):
    """An optimizer that counts nothing."""

    def step(self, steps: OptimizerSteps) -> int:
        expected = steps.next_number(self)
        number = steps.take(self)
        assert number == expected
        return number


class Owner:
    """Steps for several optimizers."""

    def __init__(self, before: int) -> None:
        self.taken = before

    def count(self) -> int:
        return self.taken


def test_optimizers_that_step_in_turn_make_one_step_together() -> None:
    steps, one, other = OptimizerSteps(), Adam(), Sgd()
    assert [each.step(steps) for _ in range(3) for each in (one, other)] == [1, 1, 2, 2, 3, 3]


def test_the_optimizer_that_steps_most_often_gives_the_number() -> None:
    """The first step of an optimizer that is new after others have stepped twice may begin another training, so it
    counts. It soon makes no difference."""
    steps, critic, generator = OptimizerSteps(), Adam(), Adam()
    turns = [[critic.step(steps), critic.step(steps), generator.step(steps)] for _ in range(3)]
    assert [max(turn) for turn in turns] == [3, 4, 6]


def test_the_steps_of_a_second_training_count_on_from_those_of_the_first() -> None:
    """As those of the trials of a search do, whose models are trained one after another."""
    steps = OptimizerSteps()
    trials = [Adam() for _ in range(3)]
    numbers = [[trial.step(steps) for _ in range(4)] for trial in trials]
    assert numbers == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]


def test_two_optimizers_of_a_second_training_make_one_step_together_too() -> None:
    steps = OptimizerSteps()
    for last in (3, 6, 9):
        one, other = Adam(), Sgd()
        assert [each.step(steps) for _ in range(3) for each in (one, other)][-2:] == [last, last]


def test_the_number_does_not_depend_on_when_an_optimizer_is_freed() -> None:
    kept: list[Adam] = []
    numbers = []
    for keep in (True, False):
        steps = OptimizerSteps()
        for _ in range(3):
            trial = Adam()
            kept.extend([trial] if keep else [])
            numbers.append([trial.step(steps) for _ in range(2)])
    assert numbers[:3] == numbers[3:] == [[1, 2], [3, 4], [5, 6]]


def test_a_restored_optimizer_counts_on_and_so_does_the_training_after_it() -> None:
    steps, restored, next_one = OptimizerSteps(), Adam(before=40), Adam()
    assert [restored.step(steps), restored.step(steps)] == [41, 42]
    assert steps.base == 40
    assert [next_one.step(steps), next_one.step(steps)] == [43, 44]


def resumed(*optimizers: Adam) -> OptimizerSteps:
    """The steps of a process that has made optimizers and restored them."""
    steps = OptimizerSteps()
    for optimizer in optimizers:
        steps.made(optimizer)
    return steps


@pytest.mark.parametrize("generator_counts", [True, False])
def test_after_a_restart_the_number_goes_on_although_the_optimizer_with_fewer_steps_is_first(
    generator_counts: bool,
) -> None:
    """A generator that steps before five steps of its critic, for 16 turns, and for two more."""

    def turn(steps: OptimizerSteps, generator: Adam, critic: Adam) -> list[int]:
        return [generator.step(steps), *(critic.step(steps) for _ in range(5))]

    generator_kind = Adam if generator_counts else Sgd
    calm, generator, critic = OptimizerSteps(), generator_kind(), Adam()
    turns = [turn(calm, generator, critic) for _ in range(18)]
    generator, critic = generator_kind(16 if generator_counts else 0), Adam(80)
    again = resumed(generator, critic)
    assert [max(turn(again, generator, critic)) for _ in range(2)] == [max(turn) for turn in turns[16:]] == [85, 90]
    assert (again.base, again.counted) == (80, True)


def test_an_optimizer_around_another_shares_its_state_and_counts_no_step_of_its_own() -> None:
    inner = Adam(40)
    outer = Adam()
    outer.state = inner.state
    steps = resumed(inner, outer)
    assert [inner.step(steps), inner.step(steps)] == [41, 42]


def test_it_is_not_known_after_which_step_a_process_began_if_no_optimizer_counts() -> None:
    sgd = Sgd()
    steps = resumed(sgd)
    assert sgd.step(steps) == 1
    assert (steps.base, steps.counted) == (0, False)


class PerLayer:
    """Has no truth and is no number, as a tensor with several elements."""

    def __bool__(self) -> bool:
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")

    def __int__(self) -> int:
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")


def test_an_optimizer_of_a_scripts_own_kind_may_keep_a_count_and_a_rate_for_each_layer() -> None:
    optimizer = Sgd()
    optimizer.state["weight"] = {"step": PerLayer()}
    steps = resumed(optimizer)
    assert [optimizer.step(steps), optimizer.step(steps)] == [1, 2]
    assert not only_fills(types.SimpleNamespace(state={}, param_groups=[{"lr": PerLayer(), "params": []}]))


def test_the_steps_of_an_owner_are_counted_as_it_counts_them() -> None:
    """An engine that is restored at step 30, with an optimizer of which nothing is known."""
    steps, engine = resumed(Sgd()), Owner(30)
    numbers = []
    for _ in range(2):
        numbers.append(steps.next_number(engine, Owner.count))
        engine.taken += 1
        numbers.append(steps.take(engine, Owner.count))
    assert numbers == [31, 31, 32, 32]
    assert (steps.base, steps.counted) == (30, True)
