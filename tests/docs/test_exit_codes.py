"""docs/exit-codes.md says what agents and the planner do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planning.world import job_spec, running, script_spec
from trainmaster.agent.shell.ranks.verdict import End, judge
from trainmaster.contract.wire import ExitCode
from trainmaster_operator.planning.facts.job_state import JobPhase

PAGE = Path(__file__).parents[2] / "docs" / "exit-codes.md"


def table() -> list[list[str]]:
    """The cells of each row."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_page_lists_every_code_once_under_its_name() -> None:
    assert [(int(row[0]), row[1]) for row in table()] == [(code.value, code.name) for code in ExitCode]


@pytest.mark.parametrize("row", [row for row in table() if row[2]], ids=lambda row: row[1])
@pytest.mark.parametrize("own_loop", [True, False], ids=["own loop", "script"])
def test_each_code_has_the_verdict_and_the_answer_of_the_page(row: list[str], own_loop: bool) -> None:
    code, cause, answer = int(row[0]), row[2], row[3].replace(":", " ").replace(",", " ").replace(".", " ").split()[0]
    if code == ExitCode.CONFIG_ERROR and not own_loop:
        cause, answer = "Crash", "Restart"
    verdict = judge(End(1, 1, status=code << 8, own_loop=own_loop))
    assert verdict.cause.value == cause
    world = running(job_spec() if own_loop else script_spec())
    world.agent(1, verdict=verdict, verdict_age_s=5.0)
    world.write()
    status = world.status
    if answer == "Fail":
        assert status.phase is JobPhase.FAILED
    else:
        counted = {"Restart": status.restarts.inPlace, "Replace": status.restarts.pod, "Free": status.restarts.free}
        assert counted == {name: int(name == answer) for name in counted}


@pytest.mark.parametrize("code", [ExitCode.OK, ExitCode.SAVED])
def test_codes_without_a_verdict_are_no_failure(code: ExitCode) -> None:
    (row,) = [row for row in table() if int(row[0]) == code]
    assert row[2] == ""
