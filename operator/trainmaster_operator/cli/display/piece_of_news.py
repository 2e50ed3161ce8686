"""A piece of news about a job, for a person who watches it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Tone(Enum):
    """How important or how bad a piece of news is."""

    PLAIN = "plain"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True)
class News:
    """A piece of news about a job."""

    word: str  # The kind of news in one word.
    text: str
    tone: Tone = Tone.PLAIN
