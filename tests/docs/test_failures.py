"""docs/failures.md names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from trainmaster.contract.wire import Cause
from trainmaster_operator.api.recovery_rules import RuleAction
from trainmaster_operator.api.recovery_spec import RecoverySpec

PAGE = (Path(__file__).parents[2] / "docs" / "failures.md").read_text()


def rows(after: str) -> list[str]:
    """The first cells of the first table after a heading."""
    lines = PAGE[PAGE.index(after) :].splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("| ---"))
    cells = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        cells.append(line.split("|")[1].strip())
    return cells


def test_every_cause_has_its_row() -> None:
    assert sorted(rows("# What a failure does")) == sorted(cause.value for cause in Cause)


def test_every_action_has_its_row() -> None:
    named = [name for cell in rows("## Rules") for name in cell.split(", ")]
    assert named == [action.value for action in RuleAction]


def test_the_rules_of_the_page_are_valid() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(RecoverySpec.model_validate(yaml.safe_load(example)["recovery"]).rules) == 5
