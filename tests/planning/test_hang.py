"""When silence is a hang: limits, a second look before anything is done, whom to blame."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning.world import World, job_spec, opened, recovered, running, script_spec, verdict
from trainmaster.contract.wire import Cause, RankState
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.facts.observation import Decision
from trainmaster_operator.planning.rounds.directives import directive

LIMIT = 8.0
STUCK = """  File "/job/train.py", line 40, in <module>
  File "/job/train.py", line 12, in exchange_halo
"""
WAITING = """  File "/job/train.py", line 40, in <module>
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4181, in all_reduce
"""


def spec(mode: str = "Enforce", **hang: Any) -> JobSpec:
    return job_spec(recovery={"hang": {"limitSeconds": LIMIT, "mode": mode, **hang}})


def reports(world: World, *each: dict[str, Any]) -> None:
    """What the ranks of slots 0, 1, … say. `silent_s` is since their last sign of life."""
    for slot, fields in zip(world.slots, each, strict=True):
        world.agent(slot, ranks=world.ranks(slot, **{"step": 10, **fields}))


def all_silent(world: World, silent_s: float, **fields: Any) -> None:
    reports(world, *({"silent_s": silent_s, **fields} for _ in world.slots))


def asks(world: World, slot: int = 0) -> bool:
    return directive(world.spec, world.status, world.observed(), slot).ask_stacks


def suspected(world: World, *each: dict[str, Any]) -> Decision:
    """Two looks at the same silence: the first raises the suspicion, the second comes after the time to confirm it."""
    reports(world, *each)
    world.write()
    assert world.status.suspicion is not None
    world.now += 3.0
    later = ({**fields, "silent_s": fields.get("silent_s", 0.0) + 3.0} for fields in each)
    reports(world, *later)
    return world.write()


def reasons(decision: Decision) -> list[str]:
    return [event.reason for event in decision.events]


def test_silent_ranks_are_suspected_then_looked_at_and_then_restarted_in_place() -> None:
    world = running(spec())
    all_silent(world, 7.9)
    assert not world.plan().intent
    assert not asks(world)
    all_silent(world, 8.0)
    assert reasons(world.write()) == ["HangSuspected"]
    assert world.status.phase is JobPhase.RUNNING
    assert all(asks(world, slot) for slot in world.slots)
    world.now += 2
    all_silent(world, 10.0, stack=STUCK, still_s=1.8)
    world.agent(2, ranks=world.ranks(2, step=9, silent_s=10.0, stack=STUCK, still_s=1.8))
    world.write()
    assert (world.status.phase, world.status.round, world.status.restarts.inPlace) == (JobPhase.RECOVERING, 2, 1)
    failure = world.status.lastFailure
    assert failure is not None
    assert (failure.cause, failure.rank, failure.traceback) == (Cause.HANG.value, 2, STUCK)
    assert world.status.recoveries[0].clock["detect"] == pytest.approx(8.0)
    assert world.status.recoveries[0].clock["decide"] == pytest.approx(2.0)


def test_the_stuck_rank_is_named_with_its_calls_and_what_the_others_do() -> None:
    world = running(spec())
    each = [{"silent_s": 9, "stack": WAITING, "still_s": 3, "collective": "42 allreduce"} for _ in world.slots]
    each[1] = {"silent_s": 9, "stack": STUCK, "still_s": 3, "collective": "41 allreduce"}
    decision = suspected(world, *each)
    (event,) = decision.events
    for words in (
        "rank 1",
        "exchange_halo (train.py:12) < <module> (train.py:40)",
        "3 of 4 ranks wait",
        "42 allreduce",
    ):
        assert words in event.message


def test_no_rank_is_named_while_it_is_not_known_which_one_the_others_wait_for() -> None:
    world = running(spec())
    each = [{"silent_s": 9.5}, *[{"silent_s": 9.0}] * 3]
    reports(world, *each)
    (event,) = world.write().events
    assert event.message == (
        "4 ranks have been silent for 9.0 s (limit 8.0 s) in phase STEP at step 10; their stacks are read to find the "
        "one that stands still"
    )
    assert world.status.suspicion is not None
    assert world.status.suspicion.message == event.message


def test_the_rank_that_is_behind_the_others_is_named_at_once() -> None:
    world = running(spec())
    reports(world, *[{"silent_s": 9.5, "collective": f"{7 if at == 2 else 8} allreduce"} for at in range(4)])
    (event,) = world.write().events
    assert event.message.startswith("rank 2 has been silent for 9.5 s")
    assert "(pod job-worker-2-0" in event.message


@pytest.mark.parametrize(
    ("each", "blamed"),
    [
        ([{"silent_s": 9}, {"silent_s": 8.5}, {"silent_s": 9.5}, {"silent_s": 8}], 2),  # the longest silent
        ([{"silent_s": 9}, {"silent_s": 8.5, "step": 9}, {"silent_s": 9.5}, {"silent_s": 8}], 1),  # the furthest behind
        ([{"silent_s": 9, "collective": "7 barrier"}, *[{"silent_s": 9.5, "collective": "8 allreduce"}] * 3], 0),
        ([*[{"silent_s": 9, "phase": "step"}] * 3, {"silent_s": 9, "phase": "load"}], 3),  # it didn't get there
        ([*[{"silent_s": 9, "stack": WAITING, "still_s": 9}] * 3, {"silent_s": 9, "stack": STUCK, "still_s": 9}], 3),
    ],
)
def test_the_rank_to_blame_is_the_one_that_did_not_arrive(each: list[dict[str, Any]], blamed: int) -> None:
    world = running(spec())
    suspected(world, *each)
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.rank == blamed


def test_a_stopped_rank_needs_no_second_look() -> None:
    world = running(spec())
    reports(world, {"silent_s": 9}, {"silent_s": 9, "step": 9}, {"silent_s": 8.1, "state": RankState.STOPPED}, {})
    world.write()
    assert (world.status.phase, world.status.lastFailure and world.status.lastFailure.rank) == (JobPhase.RECOVERING, 2)


def test_a_rank_whose_stack_moves_is_working_and_is_left_alone_for_longer() -> None:
    world = running(spec(factor=3))
    moving = {"silent_s": 9, "stack": STUCK, "still_s": 0.4}
    decision = suspected(world, *[moving] * 4)
    assert not decision.intent
    all_silent(world, 3 * LIMIT - 0.1, stack=STUCK, still_s=0.4)
    assert not world.write().intent
    all_silent(world, 3 * LIMIT, stack=STUCK, still_s=0.4)
    world.write()
    assert world.status.phase is JobPhase.RECOVERING


def test_what_the_waiting_ranks_do_does_not_excuse_the_one_they_wait_for() -> None:
    world = running(spec())
    polling = {"silent_s": 9, "stack": WAITING, "still_s": 0.1, "collective": "8 allreduce"}
    stuck = {"silent_s": 9, "stack": STUCK, "still_s": 2.0, "collective": "7 allreduce"}
    suspected(world, polling, stuck, polling, polling)
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.rank == 1


def test_a_rank_that_goes_on_ends_the_suspicion() -> None:
    world = running(spec())
    all_silent(world, 8.5)
    world.write()
    world.now += 1
    all_silent(world, 0.2, step=11)
    assert reasons(world.write()) == ["HangOver"]
    assert world.status.suspicion is None
    assert not asks(world)
    assert not world.plan().intent


def test_an_answer_from_before_the_suspicion_confirms_nothing() -> None:
    world = running(spec())
    all_silent(world, 9)
    world.write()
    world.now += 1.9
    for slot in world.slots:
        world.agent(slot, silent_s=1.9)
    assert not world.plan().intent


def test_while_a_rank_is_within_its_own_limit_nobody_is_stuck() -> None:
    """The others may wait for it: it saves, or it evaluates."""
    world = running(spec())
    reports(world, {"silent_s": 9, "phase": "eval"}, *[{"silent_s": 9}] * 3)
    assert not world.plan().intent
    reports(world, {"silent_s": 2.0}, *[{"silent_s": 9}] * 3)
    assert not world.plan().intent


def test_a_rank_that_others_leave_behind_is_stuck_although_they_go_on() -> None:
    """Worlds that seldom meet (local SGD) don't stop at once when one of their ranks does."""
    world = running(spec())
    suspected(world, {"silent_s": 9, "step": 10}, *[{"silent_s": 0.1, "step": 13}] * 3)
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.rank == 0


def test_a_rank_that_never_steps_is_not_left_behind_by_those_that_do() -> None:
    world = running(spec())
    reports(world, {"silent_s": 1e5, "step": 0, "phase": "build"}, *[{"silent_s": 0.1, "step": 13}] * 3)
    assert not world.plan().intent


@pytest.mark.parametrize(
    ("fields", "agent", "hangs"),
    [
        ({"phase": "step"}, {}, True),
        ({"phase": "save"}, {}, True),
        ({"phase": "rendezvous"}, {}, True),
        ({"phase": "build"}, {}, True),
        ({"phase": "load"}, {}, True),
        ({"phase": "eval"}, {}, False),
        ({"phase": "drain"}, {}, False),
        ({"phase": "eval", "state": RankState.STOPPED}, {}, True),
        ({"state": RankState.EXITED}, {}, False),
        ({}, {"silent_s": 15.0}, False),  # the agent itself is silent: its words are old
        ({}, {"round": 0}, False),  # of another round
    ],
)
def test_only_silence_that_means_something_counts(fields: dict[str, Any], agent: dict[str, Any], hangs: bool) -> None:
    world = running(spec())
    for slot in world.slots:
        world.agent(slot, ranks=world.ranks(slot, **{"step": 10, "silent_s": 9, **fields}), **agent)
    assert world.plan().intent is hangs


def test_without_a_limit_silence_is_no_failure() -> None:
    world = running(spec("Off"))
    all_silent(world, 1e6)
    assert not world.plan().intent


def test_the_limit_is_decided_on_the_agents_word_and_not_by_adding_up() -> None:
    world = running(spec())
    for slot in world.slots:
        world.agent(slot, ranks=world.ranks(slot, step=10, silent_s=7.9), silent_s=0.4)
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s == pytest.approx(0.5)  # the next report


@pytest.mark.parametrize("mode", ["Observe", "Notify"])
def test_a_mode_that_does_not_enforce_tells_and_leaves_the_ranks_alone(mode: str) -> None:
    world = running(spec(mode))
    all_silent(world, 9)
    first = world.write()
    world.now += 2.5
    all_silent(world, 11.5, stack=STUCK, still_s=2.4)
    second = world.write()
    told = ["HangSuspected", "HangDetected"] if mode == "Notify" else []
    assert reasons(first) + reasons(second) == told
    suspicion = world.status.suspicion
    assert suspicion is not None
    assert (suspicion.confirmed, suspicion.traceback) == (True, STUCK)
    assert "exchange_halo" in suspicion.message
    world.now += 1000
    all_silent(world, 1011.5)
    assert not world.settle().intent
    assert (world.status.round, world.status.phase, asks(world)) == (1, JobPhase.RUNNING, False)


def test_agents_end_a_start_that_takes_too_long_only_where_hangs_are_enforced() -> None:
    for mode, limit in (("Enforce", LIMIT), ("Notify", 0.0)):
        world = running(spec(mode))
        assignment = directive(world.spec, world.status, world.observed(), 0).assignment
        assert assignment is not None
        assert assignment.deadline_s == limit


@pytest.mark.parametrize(
    ("limit", "step", "hangs"),
    [
        (None, 0, False),  # no step was seen, and nobody has set a limit
        (300, 0, True),
        (600, 0, False),  # the default, which can't be told from a limit that nobody has set
        (None, 10, True),  # the script shows its steps
    ],
)
def test_a_script_that_shows_no_step_is_stuck_only_by_a_limit_that_a_person_set(
    limit: float | None, step: int, hangs: bool
) -> None:
    world = running(script_spec(**({"recovery": {"hang": {"limitSeconds": limit}}} if limit else {})), step=step)
    all_silent(world, 700.0, step=step, phase="step" if step else "build")
    assert world.plan().intent is hangs
    assert [event.reason for event in world.plan().events] == (["HangSuspected"] if hangs else [])


@pytest.mark.parametrize(
    ("step", "resumed", "hangs"),
    [
        (0, None, False),  # it prepares its data again
        (10, 10, False),  # it has loaded its save, and made no step since
        (11, 10, True),
        (3, None, True),  # it began again at step 0
    ],
)
def test_a_restarted_script_is_stuck_only_once_a_rank_has_stepped_in_its_round(
    step: int, resumed: int | None, hangs: bool
) -> None:
    world = running(script_spec(), step=10)
    world.agent(2, verdict=verdict())
    world.write()
    world.now += 1000
    for slot in world.members:
        first = slot == 0 and step > (resumed or 0)
        silent = world.ranks(slot, step=step, silent_s=700.0, phase="step" if first else "build")
        world.obey(slot, resumed=resumed, ranks=silent)
    decision = world.settle()
    assert world.status.round == 2
    assert (world.status.suspicion is not None) is hangs, decision.events


def test_a_stopped_rank_of_a_script_is_stuck_without_steps_too() -> None:
    world = running(script_spec(), step=0)
    all_silent(world, 700.0, step=0, phase="start", state=RankState.STOPPED)
    world.write()
    assert world.status.phase is JobPhase.RECOVERING


def test_agents_end_no_start_of_a_script_but_by_a_limit_that_a_person_set() -> None:
    for hang, limit in (({}, 0.0), ({"limitSeconds": 900}, 900.0)):
        world = running(script_spec(recovery={"hang": hang}))
        assignment = directive(world.spec, world.status, world.observed(), 0).assignment
        assert assignment is not None
        assert assignment.deadline_s == limit


def test_nothing_of_a_hang_outlives_its_round() -> None:
    """dlrover#1749: a checkpoint that had begun when its rank died was waited for in the next life, again and again."""
    world = running(spec())
    all_silent(world, 9, phase="save")
    world.write()
    assert asks(world)
    world.agent(2, verdict=verdict())
    world.write()
    assert world.status.round == 2
    assert not any(asks(world, slot) for slot in world.slots)
    # What is known of the old round's ranks is as silent as ever, whoever has begun the new one.
    for slot in (0, 1):
        world.obey(slot)
    world.now += 5
    world.settle()
    assert world.status.lastFailure is not None
    assert (world.status.lastFailure.cause, world.status.round) == (Cause.CRASH.value, 2)
    recovered(world, step=11, resumed=10)
    assert (world.status.phase, world.status.suspicion) == (JobPhase.RUNNING, None)
    all_silent(world, 7.0, step=12)
    assert not world.settle().intent
    assert world.status.restarts.total == 1


@pytest.mark.parametrize(
    ("longest", "words"),
    [(2.0, "; the limit follows from the longest healthy pause of this kind, 2 s (usually 0.5 s)"), (0.5, "")],
)
def test_a_suspicion_names_the_pause_that_made_its_limit_longer_than_the_shortest_one(
    longest: float, words: str
) -> None:
    world = running(job_spec())
    for slot in world.slots:
        silent = world.ranks(slot, step=30, silent_s=400.0)
        world.agent(slot, ranks=silent, pauses={"step": [27, 0.5, longest, 14.0]})
    (event,) = world.write().events
    assert event.reason == "HangSuspected"
    assert event.message.endswith(f"read to find the one that stands still{words}")


def test_a_suspicion_that_a_restarted_operator_finds_is_gone_on_with() -> None:
    world = running(spec())
    all_silent(world, 9)
    world.write()
    world.epoch = 2
    world.now += 3.0
    all_silent(world, 12.0)
    world.write()
    assert world.status.restarts.inPlace == 1


@pytest.mark.parametrize("mode", ["Enforce", "Notify"])
def test_a_leader_that_has_heard_no_agent_yet_does_not_say_that_the_rank_reports_again(mode: str) -> None:
    world = running(spec(mode))
    all_silent(world, 9)
    world.write()
    known = world.status.suspicion
    heard, world.agents = world.agents, {}
    world.epoch, world.leading_s = 2, 0.0
    world.now += 0.1
    decision = world.write()
    assert (reasons(decision), world.status.suspicion) == ([], known)
    world.agents = heard
    world.leading_s = 1.0
    reports(world, *({"silent_s": 0.1, "step": 11} for _ in world.slots))
    assert reasons(world.write()) == ["HangOver"]


def test_an_agent_that_never_starts_a_round_loses_its_pod() -> None:
    world = opened(spec())
    world.agent(3, round=0, ranks=())
    world.now += 7.5
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s == pytest.approx(0.5)
    world.now += 0.5
    world.write()
    assert world.status.incarnations == "0*3,1"


def test_a_new_leader_counts_from_when_it_could_tell_of_the_round() -> None:
    world = opened(spec())
    world.agent(3, round=0, ranks=())
    world.now += 100.0
    world.leading_s = 1.0
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s == pytest.approx(LIMIT - 1.0)
    world.leading_s = LIMIT
    world.write()
    assert world.status.incarnations == "0*3,1"
