"""Agents whose command is read by a launcher's own parser: what the operator hears until it has answered."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest

from tests.agent.world import World
from trainmaster.agent.shell.control_client import Refused, Unreachable
from trainmaster.agent.shell.settings_reading import READING, next_report
from trainmaster.contract.launch.own_parser import MARK
from trainmaster.contract.wire import Directive, DirectiveState, ExitCode

ANSWER = {
    "kind": "program",
    "name": "sh",
    "args": ["-c", "echo I am $RANK"],
    "given": {},
    "environment": {},
    "files": {},
}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Directive(1, DirectiveState.WAIT, 0, "a", report_interval_s=7.0), (None, 7.0)),
        (Directive(1, DirectiveState.RUN, 3, "b", report_interval_s=7.0), (None, 7.0)),  # of a round without this agent
        (Directive(1, DirectiveState.HOLD, 3, "c", report_interval_s=7.0), (None, 7.0)),
        (Directive(1, DirectiveState.FINISH, 3, "d"), (ExitCode.OK, 0.5)),
        (Refused(503, "incarnation 1 of slot 0 is not known yet"), (None, 0.2)),
        (Refused(503, "too many", retry_after_s=5.0), (None, 5.0)),
        (Refused(410, "incarnation 0 of slot 0 is stale"), (ExitCode.FENCED, 0.2)),
        (Unreachable("TimeoutError"), (None, 0.2)),
    ],
)
def test_what_an_answer_means_for_an_agent_that_has_not_joined(
    answer: Directive | Refused | Unreachable, expected: tuple[int | None, float]
) -> None:
    assert next_report(answer, 0.2) == expected


def reading(world: World) -> None:
    """An agent whose parser answers as soon as there is a file `go`, once it has reported several times."""
    python = world.folder / "python"
    (world.folder / "answer").write_text(MARK + json.dumps(ANSWER) + "\n")
    python.write_text("#!/bin/sh\nuntil [ -e go ]; do sleep 0.05; done\ncat answer\n")
    python.chmod(0o755)
    world.start(["accelerate", "launch", "t.py"], TRAINMASTER_PYTHON=str(python), **world.without_torch())
    world.operator.wait_for(lambda: len(world.operator.reports) > 2, "reports of an agent that reads its command")


@pytest.mark.processes
def test_an_agent_reports_while_its_command_is_read_and_joins_when_it_is_known(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    reading(world)
    assert (world.operator.joins, world.operator.round) == ([], 0), "no round opens before the answer is there"
    assert all(report.warming and not report.ranks for report in world.operator.reports)
    assert [event["reason"] for event in world.operator.events] == [READING], "said once"
    assert world.operator.events[0]["message"].startswith("accelerate launch reads the options")
    (world.folder / "go").touch()
    assert world.wait() == 0
    assert "[rank 0] I am 0" in world.log()


@pytest.mark.processes
@pytest.mark.parametrize("ended_by", ["a signal", "the operator"])
def test_an_agent_that_must_end_does_not_wait_for_the_parser(make_world: Callable[..., World], ended_by: str) -> None:
    world = make_world()
    reading(world)
    if ended_by == "a signal":
        world.agents[0].send_signal(signal.SIGTERM)
    else:
        world.operator.direct(gone=True)
    assert world.wait() == (128 + signal.SIGTERM if ended_by == "a signal" else ExitCode.FENCED)
    world.until(lambda: not world.processes())
    assert "Traceback" not in world.log()


@pytest.mark.processes
def test_what_a_parser_refuses_ends_the_agent_with_its_words_alone(make_world: Callable[..., World]) -> None:
    world = make_world()
    reading(world)
    (world.folder / "answer").write_text(MARK + json.dumps({"refused": "argument --x: no such thing"}) + "\n")
    (world.folder / "go").touch()
    assert world.wait() == ExitCode.CONFIG_ERROR
    assert world.log() == "trainmaster agent: accelerate launch: argument --x: no such thing\n"
