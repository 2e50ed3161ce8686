"""The loss of a model that only guesses: from a sample of the text, and None where that can't be told."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from trainmaster.data import text_files
from trainmaster_operator.cli.report import guessing_loss as guessing
from trainmaster_operator.cli.report.guessing_loss import guessing_loss


def training(folder: Path, **data: Any) -> dict[str, Any]:
    return {"data": {"path": str(folder), **data}, "steps": 1, "batch": {"global": 1}}


def test_it_is_the_unigram_entropy_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("aaab" * 10)
    assert guessing_loss(training(tmp_path)) == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))


def test_only_a_sample_of_a_large_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guessing, "SAMPLE_BYTES", 2**14)
    (tmp_path / "a.txt").write_bytes(b"a" * 2**16 + b"b" * 2**16)
    amounts = []
    read = text_files.Text.read

    def counted(text: text_files.Text, start: int, stop: int) -> bytes:
        amounts.append(stop - start)
        return read(text, start, stop)

    monkeypatch.setattr(text_files.Text, "read", counted)
    assert guessing_loss(training(tmp_path)) == pytest.approx(math.log(2), abs=0.01)
    assert sum(amounts) == 2**14


def test_data_that_are_no_text_or_are_gone_have_none(tmp_path: Path) -> None:
    assert guessing_loss(training(tmp_path / "gone")) is None
    assert guessing_loss(training(tmp_path, source="tokens")) is None
    assert guessing_loss({"of": "another version"}) is None


def test_a_folder_of_very_many_files_is_not_listed_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("ab")
    monkeypatch.setattr(guessing, "MOST_FILES", 4)
    assert guessing_loss(training(tmp_path)) is not None
    monkeypatch.setattr(guessing, "MOST_FILES", 3)
    assert guessing_loss(training(tmp_path)) is None
