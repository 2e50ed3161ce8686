"""What fails in the same way before the first step is not tried again and again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planning.world import World, job_spec, opened, recovered, running, script_spec, verdict
from trainmaster.contract.wire import Cause, RankState, Recurrence
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.planning.facts.job_state import JobPhase
from trainmaster_operator.planning.failure.repeated_failure import UNSEEN_S
from trainmaster_operator.planning.failure.unstartable_program import OTHERS_WAIT_S

USAGE = "ended with exit code 2: train.py: error: the following arguments are required: --data"
TYPO = "NameError: name 'modle' is not defined"


def fails(world: World, slot: int, message: str = USAGE, age_s: float = 0.1, code: int = 2, **fields: Any) -> None:
    """The one rank of a slot ends without a step."""
    said = {"recurs": Recurrence.CERTAIN, "message": message, "exit_code": code, **fields}
    world.agent(
        slot,
        verdict=verdict(slot, round=world.status.round, **said),
        verdict_age_s=age_s,
        ranks=world.ranks(slot, state=RankState.EXITED, exit_code=code, phase="start"),
    )


def fails_again(world: World, slot: int, message: str = TYPO, **fields: Any) -> None:
    """A failure that is likely to recur, first in one round and then in the next one."""
    for _ in range(2):
        assert world.status.phase is not JobPhase.FAILED
        fails(world, slot, message, **{"code": 1, "recurs": Recurrence.LIKELY, **fields})
        world.write()
        for member in world.members:
            if world.status.phase is not JobPhase.FAILED:
                world.pod(member)
                world.obey(member)


def test_a_program_that_cannot_start_on_any_rank_fails_the_job_at_once() -> None:
    world = opened(script_spec())
    for slot in range(4):
        fails(world, slot)
    world.write()
    failure = world.status.lastFailure
    assert world.status.phase is JobPhase.FAILED
    assert failure is not None
    assert (
        failure.message == f"every rank failed in this way before its first step, so a restart would not help: {USAGE}"
    )
    assert world.status.restarts.total == 0
    (failed,) = (c for c in world.status.conditions if c.type == "Failed")
    assert failed.message == f"rank 0: {failure.message}"


def test_what_differs_from_rank_to_rank_does_not_make_a_failure_another_one() -> None:
    world = opened(script_spec(2))
    for slot in range(2):
        fails(
            world,
            slot,
            f"ModuleNotFoundError: No module named 'x' (rank {slot}, /tmp/{slot}ab/x.py, 0x7f{slot})",
            code=1,
        )
    world.write()
    assert world.status.phase is JobPhase.FAILED


def test_a_program_that_cannot_start_waits_a_while_for_the_word_of_the_other_ranks() -> None:
    world = opened(script_spec())
    fails(world, 1, age_s=2.0)
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s == pytest.approx(OTHERS_WAIT_S - 2.0)
    fails(world, 1, age_s=OTHERS_WAIT_S)
    assert world.write().status.restarts.inPlace == 1


@pytest.mark.parametrize(
    "other",
    [
        {"message": "it broke elsewhere"},
        {"recurs": Recurrence.UNKNOWN},
        {"cascade": True, "recurs": Recurrence.UNKNOWN},
    ],
)
def test_ranks_that_fail_in_different_ways_are_restarted_without_a_wait(other: dict[str, Any]) -> None:
    world = opened(script_spec(2))
    fails(world, 0)
    fails(world, 1, **{"message": USAGE, **other})
    assert world.write().status.restarts.inPlace == 1


def test_a_program_that_failed_after_a_step_is_restarted_though_it_did_so_on_every_rank() -> None:
    world = running(script_spec(2), step=3)
    for slot in range(2):
        world.agent(slot, verdict=verdict(slot, recurs=Recurrence.CERTAIN, message="ModuleNotFoundError: wandb"))
    assert world.write().status.restarts.inPlace == 1


def test_the_same_failure_before_the_first_step_is_not_tried_a_third_time() -> None:
    world = opened(script_spec())
    fails_again(world, 2)
    failure = world.status.lastFailure
    assert world.status.phase is JobPhase.FAILED
    assert failure is not None
    assert (
        failure.message
        == f"the job failed twice in this way before its first step, so a third try would not help: {TYPO}"
    )
    assert world.status.restarts.total == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"recurs": Recurrence.UNKNOWN},
        {"recurs": Recurrence.UNKNOWN, "message": "OSError: [Errno 116] Stale file handle"},
        {"recurs": Recurrence.UNKNOWN, "cause": Cause.OUT_OF_MEMORY},
    ],
)
def test_what_may_pass_by_itself_is_tried_as_often_as_the_budget_says(fields: dict[str, Any]) -> None:
    world = opened(script_spec())
    fails_again(world, 2, **fields)
    assert world.status.phase is JobPhase.RECOVERING
    assert world.status.restarts.inPlace == 2


def test_a_script_whose_steps_nobody_counts_may_fail_twice_in_the_same_way_long_after_its_start() -> None:
    world = opened(script_spec())
    for _ in range(2):
        world.now += UNSEEN_S
        fails(world, 2, TYPO, code=1, recurs=Recurrence.LIKELY)
        world.write()
        for slot in range(4):
            world.obey(slot)
    assert (world.status.phase, world.status.restarts.inPlace) == (JobPhase.RECOVERING, 2)


def test_a_script_whose_steps_nobody_counts_may_end_with_code_2_on_every_rank_long_after_its_start() -> None:
    world = opened(script_spec(2))
    world.now += UNSEEN_S
    for slot in range(2):
        fails(world, slot)
    assert world.write().status.restarts.inPlace == 1


def test_another_failure_is_no_second_one_of_the_first() -> None:
    world = opened(script_spec())
    fails(world, 2, TYPO, code=1, recurs=Recurrence.LIKELY)
    world.write()
    for slot in range(4):
        world.obey(slot)
    fails(world, 2, "KeyError: 'lr'", code=1, recurs=Recurrence.LIKELY)
    assert world.write().status.restarts.inPlace == 2


def test_a_step_in_between_makes_it_a_first_failure_again() -> None:
    world = opened(script_spec())
    for _ in range(3):
        fails(world, 2, TYPO, code=1, recurs=Recurrence.LIKELY)
        world.write()
        assert world.status.phase is JobPhase.RECOVERING
        recovered(world, step=world.status.progress.highestStep + 5)
        fails(world, 2, TYPO, code=1, recurs=Recurrence.LIKELY)
        world.agent(2, ranks=world.ranks(2, step=world.status.progress.step, state=RankState.EXITED, exit_code=1))
        world.write()
        for slot in range(4):
            world.pod(slot)
            world.obey(slot)
    assert world.status.phase is JobPhase.RECOVERING


def test_a_signal_that_ends_a_rank_twice_is_the_same_failure() -> None:
    """The status has 139 where the agent says -11."""
    world = opened(script_spec())
    fails_again(world, 2, code=-11)
    assert world.status.phase is JobPhase.FAILED
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.exitCode == 139


def fails_after_a_step(
    world: World, message: str = "ValueError: a sample of 7 tokens", resumed: int | None = 20, **fields: Any
) -> None:
    """Rank 2 raises after step 30, and if the job goes on, its ranks come to step 30 again."""
    said = {"recurs": Recurrence.LIKELY, "exit_code": 1, "step": 30, "message": message, **fields}
    world.agent(
        2,
        verdict=verdict(2, round=world.status.round, **said),
        ranks=world.ranks(2, step=30, state=RankState.EXITED, exit_code=1),
    )
    world.write()
    if world.status.phase is not JobPhase.FAILED:
        recovered(world, step=30, resumed=resumed)


def restarts(world: World) -> tuple[int, int, int]:
    return world.status.restarts.inPlace, world.status.restarts.pod, world.status.restarts.full


@pytest.mark.parametrize("spec", [job_spec(), script_spec()])
def test_the_same_exception_after_the_same_step_is_tried_once_in_place_and_once_with_a_new_pod(spec: JobSpec) -> None:
    world = running(spec, step=30)
    counted = []
    for tokens in (7, 8, 9):
        fails_after_a_step(world, f"ValueError: a sample of {tokens} tokens")
        counted.append(restarts(world))
    assert counted == [(1, 0, 0), (1, 1, 0), (1, 1, 0)]
    assert world.status.phase is JobPhase.FAILED
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.message == (
        "the same failure came 3 times after step 30, the last time with a new pod, so another restart would not help: "
        "ValueError: a sample of 9 tokens. To end the job at the first such failure, add the rule "
        "{causes: [Crash], message: ValueError, action: Fail} to spec.recovery.rules"
    )


def test_the_rule_that_the_message_advises_is_one_that_ends_the_job_at_the_first_such_failure() -> None:
    rule = {"causes": ["Crash"], "message": "ValueError", "action": "Fail"}
    world = running(job_spec(recovery={"rules": [rule]}), step=30)
    fails_after_a_step(world)
    assert (world.status.phase, restarts(world)) == (JobPhase.FAILED, (0, 0, 0))


@pytest.mark.parametrize(
    "another",
    [
        {"message": "KeyError: 'lr'"},
        {"step": 29},
        {"exit_code": 3},
        {"recurs": Recurrence.UNKNOWN},
    ],
)
def test_a_failure_that_differs_is_restarted_in_place_as_the_budget_allows(another: dict[str, Any]) -> None:
    world = running(step=30)
    fails_after_a_step(world)
    fails_after_a_step(world, **another)
    assert restarts(world) == (2, 0, 0)


def test_a_step_of_progress_makes_the_same_exception_a_first_failure_again() -> None:
    world = running(step=30)
    fails_after_a_step(world)
    for slot in world.slots:
        world.agent(slot, ranks=world.ranks(slot, step=31))
    world.settle()
    fails_after_a_step(world)
    assert restarts(world) == (2, 0, 0)


def raised_at(line: int) -> str:
    """The traceback of the exception that `fails_after_a_step` reports."""
    frame = f'  File "train.py", line {line}, in <module>\n    raise ValueError("a sample of 7 tokens")\n'
    return f"Traceback (most recent call last):\n{frame}ValueError: a sample of 7 tokens\n"


def test_a_script_of_unknown_step_that_raises_at_the_same_line_a_third_time_ends_the_job() -> None:
    world = running(script_spec(), step=30)
    counted = []
    for _ in range(3):
        fails_after_a_step(world, resumed=None, traceback=raised_at(8))
        counted.append(restarts(world))
    assert counted == [(1, 0, 0), (1, 1, 0), (1, 1, 0)]
    assert world.status.phase is JobPhase.FAILED
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.message.startswith(
        "the same failure came 3 times after 30 steps since the last start, the last time with a new pod"
    )


@pytest.mark.parametrize(
    "another",
    [
        {"traceback": raised_at(9)},
        {"traceback": ""},
        {"step": 29, "traceback": raised_at(8)},
        {"recurs": Recurrence.UNKNOWN, "traceback": raised_at(8)},
    ],
)
def test_a_script_of_unknown_step_that_fails_in_another_place_is_restarted_as_the_budget_allows(
    another: dict[str, Any],
) -> None:
    world = running(script_spec(), step=30)
    fails_after_a_step(world, resumed=None, traceback=raised_at(8))
    fails_after_a_step(world, resumed=None, **another)
    assert restarts(world) == (2, 0, 0)


def test_a_job_that_may_have_fewer_pods_shrinks_before_the_same_exception_ends_it() -> None:
    workers = {"replicas": 4, "min": 2, "ranksPerPod": 1}
    world = running(job_spec(workers=workers), step=30)
    for _ in range(3):
        fails_after_a_step(world)
    assert restarts(world) == (1, 1, 0)
    assert world.status.restarts.shrink == 1


def test_a_job_that_a_person_continues_tries_the_same_exception_again_as_often_as_at_first() -> None:
    """`trainmaster run` keeps the last failure of a failed job, for people, and empties the budget."""
    world = running(step=30)
    for _ in range(3):
        fails_after_a_step(world)
    assert world.status.phase is JobPhase.FAILED
    again = world.status.model_copy(update={"phase": JobPhase.SUSPENDED, "spent": [], "completionTime": ""})
    world.status = again.model_copy(update={"round": again.round + 1, "roundStore": ""})
    world.settle()
    recovered(world, step=30, resumed=20)
    before = restarts(world)
    for _ in range(2):
        fails_after_a_step(world)
    assert (before, restarts(world)) == ((1, 1, 0), (2, 2, 0))
    fails_after_a_step(world)
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.message.startswith("the same failure came 3 times after step 30")


def test_a_spent_budget_tells_that_the_failures_were_the_same() -> None:
    world = running(job_spec(recovery={"budget": {"inPlace": 1, "pod": 0, "full": 0}}), step=30)
    for _ in range(2):
        fails_after_a_step(world, "FileNotFoundError: no shard", recurs=Recurrence.UNKNOWN)
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.message == (
        "the recovery budget is exhausted after 1 restarts in place, 0 of single pods and 0 of all pods; "
        "the previous failure was the same, after the same step 30: FileNotFoundError: no shard"
    )


STUCK = '  File "/job/train.py", line 32, in <module>\n'
MEETS = f'{STUCK}  File "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 8, in backward\n'
READS = f'{STUCK}  File "/usr/lib/python3.11/ssl.py", line 1311, in recv\n'


def hangs_after_a_step(
    world: World, stack: str = STUCK, others: str = MEETS, rank: int = 2, resumed: int = 20, **fields: Any
) -> None:
    """A rank stands still after step 30, and if the job goes on, its ranks come to step 30 again."""
    for wait in (20.0, 3.0):
        world.now += wait
        for slot in world.slots:
            stands = {"step": 30, "silent_s": wait + 5, "still_s": wait, "collective": "7 allreduce", **fields}
            world.agent(slot, ranks=world.ranks(slot, **{"stack": stack if slot == rank else others, **stands}))
        world.write()
    if world.status.phase is not JobPhase.FAILED:
        assert world.status.phase is JobPhase.RECOVERING
        recovered(world, step=30, resumed=resumed)


def hanging_script(**recovery: Any) -> World:
    return running(script_spec(recovery={"hang": {"limitSeconds": 8}, **recovery}), step=30)


def test_a_script_that_hangs_a_third_time_at_the_same_line_after_the_same_step_is_not_restarted_again() -> None:
    world = hanging_script()
    counted = []
    for _ in range(3):
        hangs_after_a_step(world)
        counted.append(restarts(world))
    assert counted == [(1, 0, 0), (1, 1, 0), (1, 1, 0)]
    assert world.status.phase is JobPhase.FAILED
    assert world.status.lastFailure is not None
    words = world.status.lastFailure.message
    assert words.startswith(
        "the same failure came 3 times after step 30, the last time with a new pod, so another restart would not help: "
        "rank 2 has been silent for "
    )
    assert words.endswith(
        "it is in <module> (train.py:32). To end the job at the first such failure, add the rule "
        "{causes: [Hang], action: Fail} to spec.recovery.rules"
    )


def test_the_rule_that_is_advised_for_a_hang_ends_the_job_at_the_first_one() -> None:
    world = hanging_script(rules=[{"causes": ["Hang"], "action": "Fail"}])
    hangs_after_a_step(world)
    assert (world.status.phase, restarts(world)) == (JobPhase.FAILED, (0, 0, 0))


@pytest.mark.parametrize(
    "outside",
    [
        {"stack": MEETS, "others": MEETS},  # The network: each rank waits for the others.
        {"stack": STUCK, "others": STUCK},  # The network of GPUs, where the host waits for the device.
        {"stack": READS},  # A download.
        {"stack": ""},  # The kernel holds the rank, for example because a disk does not answer.
        {"phase": "save"},  # Storage.
    ],
)
def test_a_hang_whose_cause_may_be_outside_is_restarted_as_often_as_the_budget_allows(outside: dict[str, Any]) -> None:
    world = hanging_script()
    for _ in range(3):
        hangs_after_a_step(world, **outside)
    assert restarts(world) == (3, 0, 0)


def test_a_hang_of_the_built_in_trainer_is_restarted_as_often_as_the_budget_allows() -> None:
    world = running(job_spec(recovery={"hang": {"limitSeconds": 8}}), step=30)
    for _ in range(3):
        hangs_after_a_step(world)
    assert restarts(world) == (3, 0, 0)


def test_hangs_of_different_ranks_or_lines_are_not_the_same() -> None:
    world = hanging_script()
    hangs_after_a_step(world)
    hangs_after_a_step(world, rank=1)
    hangs_after_a_step(world, rank=1, stack=STUCK.replace("32", "33"))
    assert restarts(world) == (3, 0, 0)


def test_a_hang_in_a_round_without_a_step_does_not_count_as_the_same() -> None:
    """Its ranks have not shown that the network and the storage work."""
    world = hanging_script()
    hangs_after_a_step(world, resumed=30)
    hangs_after_a_step(world, resumed=30)
    assert restarts(world) == (2, 0, 0)


def test_a_spent_budget_advises_a_rule_for_hangs_that_were_the_same() -> None:
    world = hanging_script(budget={"inPlace": 1, "pod": 0, "full": 0})
    for _ in range(2):
        hangs_after_a_step(world, stack=MEETS)
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.message.startswith("the recovery budget is exhausted after 1 restarts in place")
    assert world.status.lastFailure.message.endswith(
        "To end the job at the first such failure, add the rule {causes: [Hang], action: Fail} to spec.recovery.rules"
    )
