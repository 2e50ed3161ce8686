"""What docs/troubleshooting.md says that people see is what Trainmaster says."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.docs.blocks import ROOT

OF_OTHERS = ("trainmaster: command not found", 'violates PodSecurity "restricted"', "kubectl drain")
"""Words of a shell, of Kubernetes, and of the reader."""
_LEFT_OUT = re.compile(r"\.\.\.|\d+(?:\.\d+)?(?: m?s)?|[()]")
"""What stands for something that differs each time."""


def quotes() -> Iterator[str]:
    """What stands in the first columns of the page's tables as code."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    for seen in re.findall(r"^\| (.+?) \| .+ \|$", page, re.MULTILINE):
        yield from (quote for quote in re.findall(r"`([^`]+)`", seen) if quote not in OF_OTHERS)


@pytest.fixture(scope="module")
def texts() -> str:
    """The sources, in which a text that goes on in the next line is one text."""
    files = [path for folder in ("operator", "trainer") for path in (ROOT / folder).rglob("*.py")]
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(path.read_text() for path in files))


@pytest.mark.parametrize("quote", [*quotes()])
def test_trainmaster_says_what_the_page_quotes(texts: str, quote: str) -> None:
    for words in _LEFT_OUT.split(quote):
        assert words.strip() in texts


def test_quotes_are_found() -> None:
    assert len([*quotes()]) >= 20
