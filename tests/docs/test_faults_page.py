"""docs/faults.md tells every kind of fault, with the keys that it takes."""

from __future__ import annotations

import re
from pathlib import Path

from trainmaster.rank import injected_faults
from trainmaster_operator.cli.fault_injection.fault_kinds import NOT_ON_A_CLUSTER

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"


def rows() -> dict[str, list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_every_kind_and_its_keys_are_told() -> None:
    told = {kind: set(re.findall(r"`(\w+)`", row[1])) for kind, row in rows().items()}
    assert told == {name: set(kind.keys) for name, kind in injected_faults.KINDS.items()}


def test_what_a_cluster_refuses_is_told() -> None:
    assert {kind for kind, row in rows().items() if row[3] == "no"} == set(NOT_ON_A_CLUSTER)
