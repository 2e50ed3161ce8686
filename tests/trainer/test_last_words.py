"""What a rank tells of the exception that ends it."""

from __future__ import annotations

import pytest

from trainmaster.errors import ConfigError, DataError, NotSaved
from trainmaster.rank.exception_verdict import verdict


@pytest.mark.parametrize("error", [ConfigError("a is wrong"), DataError("b is empty")])
def test_a_mistake_of_a_person_is_told_in_its_sentence_without_a_traceback(error: Exception) -> None:
    words, _ = verdict(error, 0)
    assert (words["message"], words["traceback"]) == (str(error), "")


@pytest.mark.parametrize("error", [NotSaved("no space"), ValueError("x")])
def test_any_other_exception_is_told_with_its_traceback(error: Exception) -> None:
    words, _ = verdict(error, 0)
    assert str(error) in words["traceback"]
