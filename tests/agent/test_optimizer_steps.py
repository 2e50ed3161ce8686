"""How the steps of several optimizers of one process are numbered."""

from __future__ import annotations

from typing import Any

from trainmaster.rank.optimizer_steps import OptimizerSteps


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
