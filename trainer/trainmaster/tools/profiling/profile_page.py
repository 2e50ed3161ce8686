"""One HTML page of recorded steps, which needs no network: a table of ranks, a timeline, the longest operators."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainmaster.tools.profiling.time_split import Split

_TEMPLATE = Path(__file__).parent / "page.html"


def page(
    first: int, last: int, round: int, splits: Sequence[Split], order: Sequence[int], timelines: list[dict[str, Any]]
) -> str:
    """Return the page.

    `order` has all ranks, first the one that the others wait for. `timelines` has those of the first ranks.
    """
    data = {
        "first": first,
        "last": last,
        "round": round,
        "splits": [{**dataclasses.asdict(split), "own": split.own} for split in splits],
        "order": list(order),
        "timelines": timelines,
    }
    # Names come from the user's code: none of them may end the script.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return _TEMPLATE.read_text(encoding="utf-8").replace("/*DATA*/null", text)
