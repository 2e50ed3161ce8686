"""Faults that never fired are told with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainmaster_operator.cli.fault_injection.run_faults import FaultServer
from trainmaster_operator.cli.fault_injection.unfired_faults import of_run, sentences
from trainmaster_operator.planning.facts.job_state import JobState, ProgressStatus, Restarts

KILL = {"id": "fault-0", "kind": "kill", "rank": 1, "step": 20, "code": 1}


def ended(highest: int, restarts: int = 0) -> JobState:
    progress = ProgressStatus(step=highest, highestStep=highest)
    return JobState(progress=progress, restarts=Restarts(inPlace=restarts))


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (
            ended(0),
            "the job ended before step 20, and no step of it was seen. A script that continues from a checkpoint",
        ),
        (ended(19), "the job ended after step 19, before step 20"),
        (
            ended(40, restarts=1),
            "no step from 20 on was seen in rank 1, although the job reached step 40. The job restarted "
            "1 time, and after that its script continued from a later step, or its steps are counted from 0 in each",
        ),
        (
            ended(40),
            "no step from 20 on was seen in rank 1, although the job reached step 40. Its script continued "
            "from a checkpoint of a later step, or the steps of this rank are not counted",
        ),
    ],
)
def test_a_fault_that_never_fired_is_told_with_the_reason(status: JobState, reason: str) -> None:
    (sentence,) = sentences([KILL], status)
    assert sentence.startswith(f"--fault kill:rank=1,step=20 never happened: {reason}")


@pytest.mark.parametrize("counts", ["torch", "Keras and TensorFlow", "XGBoost", "run.steps()", "run.report(step=...)"])
def test_a_job_whose_steps_are_not_seen_is_told_what_counts_them(counts: str) -> None:
    (sentence,) = sentences([KILL], ended(0))
    assert counts in sentence.partition("they are counted at ")[2]


def test_nothing_is_said_when_every_fault_fired() -> None:
    assert list(sentences([], ended(40))) == []


@pytest.mark.parametrize(("writes", "words"), [(1, "no write"), (3, "fewer than 3 writes")])
def test_a_fault_that_could_not_be_done_and_a_crash_whose_write_never_came_are_told_too(
    tmp_path: Path, writes: int, words: str
) -> None:
    server = FaultServer(tmp_path / "f.sock", json.dumps([KILL]), {}, lambda _: None)
    server.undone.append(({**KILL, "kind": "lose-store"}, "no pod hosts the store of the round"))
    crash = {**KILL, "kind": "crash-operator", "writes": writes}
    _, undone, late = of_run(server, [crash], ended(40))
    assert undone == "--fault lose-store:rank=1,step=20 could not be done: no pod hosts the store of the round"
    assert late == (f"--fault crash-operator:rank=1,step=20 never happened: the operator made {words} after that step")
