"""The drawings of docs/pictures: they need no network, can be read in the dark and aloud, and nothing is cut off."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
EM_OF_A_LETTER = 0.5
"""A letter's mean width, in sizes of its font. Wide fonts need a little more."""


def named(picture: Path) -> str:
    return picture.name


@pytest.mark.parametrize("picture", PICTURES, ids=named)
def test_a_picture_needs_nothing_from_elsewhere_and_can_be_read_aloud(picture: Path) -> None:
    text = picture.read_text()
    root = ElementTree.fromstring(text)
    assert re.findall(r"(?:href|src|url)\s*[=(]\s*[\"']?(?!#)[^\s\"')]+", text) == []
    assert [element.tag for element in root.iter() if element.tag in (f"{SVG}script", f"{SVG}image")] == []
    assert all((root.findtext(f"{SVG}{name}") or "") != "" for name in ("title", "desc"))
    assert "prefers-color-scheme: dark" in text


@pytest.mark.parametrize("picture", PICTURES, ids=named)
def test_every_text_of_a_picture_lies_within_it(picture: Path) -> None:
    root = ElementTree.fromstring(picture.read_text())
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    texts = [*root.iter(f"{SVG}text")]
    assert len(texts) > 20
    assert [text.text for text in texts if not (0 < float(text.attrib["y"]) < height)] == []
    assert [text.text for text in texts if not (left_of(text) >= 0 and left_of(text) + about_px(text) <= width)] == []


def about_px(text: ElementTree.Element) -> float:
    """Return about how wide a text is drawn."""
    return EM_OF_A_LETTER * (12.5 if {"small", "mono"} & {*classes(text)} else 14) * len(text.text or "")


def left_of(text: ElementTree.Element) -> float:
    share = next((share for name, share in (("mid", 0.5), ("end", 1.0)) if name in classes(text)), 0.0)
    return float(text.attrib["x"]) - share * about_px(text)


def classes(text: ElementTree.Element) -> list[str]:
    return text.attrib.get("class", "").split()
