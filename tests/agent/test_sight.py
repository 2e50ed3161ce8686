"""That nothing is seen of a rank is said once, and only where it is so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.agent.shell.ranks.round import Round
from trainmaster.agent.shell.ranks.unobserved_steps import Sight
from trainmaster.contract.wire import Progress


def round_of(*ranks: tuple[int, bool]) -> Any:
    """A round whose ranks have written (ns of their start), and have ended or not."""
    fakes = [
        SimpleNamespace(number=number, ended=ended, progress=lambda started=started: Progress(started_ns=started))
        for number, (started, ended) in enumerate(ranks)
    ]
    return SimpleNamespace(ranks=fakes, unwatched=Round.unwatched.fget(SimpleNamespace(ranks=fakes)))  # type: ignore[attr-defined]


def test_it_is_said_once_which_program_is_not_watched() -> None:
    told: list[str] = []
    sight = Sight("./train", told.append)
    sight.look(round_of((7, False), (0, False)))
    sight.look(round_of((0, False), (0, False)))
    assert len(told) == 1
    assert told[0].startswith("rank 1 is not watched: ./train has started no Python")


@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        ("./run.sh", [(7, False)]),  # its Python has been seen
        ("./run.sh", [(0, True)]),  # it has ended
        ("", [(0, False)]),  # a Python that the agent starts itself, which is still coming up
    ],
)
def test_nothing_is_said_of_a_rank_that_is_watched_or_has_ended(program: str, ranks: list[tuple[int, bool]]) -> None:
    told: list[str] = []
    Sight(program, told.append).look(round_of(*ranks))
    assert told == []
