"""The unit of a job's samples, for people who read how many of them are trained on per second."""

from __future__ import annotations

_UNITS = {"images": "images", "arrays": "images"}
"""The unit of the samples of a data source. All other sources give tokens."""


def unit_of(source: str) -> str:
    """Return the plural of what a source's samples are counted in: "tokens", or "images"."""
    return _UNITS.get(source, "tokens")
