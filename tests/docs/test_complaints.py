"""docs/complaints.md: each complaint has an answer, and each test that it names is there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "complaints.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
NAMED = sorted(set(re.findall(r"`(test_\w+)`", PAGE)))


@cache
def known_tests() -> set[str]:
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "e2e").glob("*.py")]
    defined = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
    return {name for file in files for name in defined.findall(file.read_text())}


def test_every_complaint_is_numbered_and_has_an_answer() -> None:
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 38))
    for number, _, answer in ROWS:
        assert "`test_" in answer or answer.endswith("."), f"complaint {number} has neither a test nor a sentence"


@pytest.mark.parametrize("name", NAMED)
def test_a_test_that_is_named_is_there(name: str) -> None:
    assert name in known_tests()
