"""The drawings of docs/pictures: they need no network, can be read in the dark and aloud, and nothing is cut off."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


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
    places = [(float(text.attrib["x"]), float(text.attrib["y"])) for text in root.iter(f"{SVG}text")]
    assert len(places) > 20
    assert [place for place in places if not (0 < place[0] < width and 0 < place[1] < height)] == []
