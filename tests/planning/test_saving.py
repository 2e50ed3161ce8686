"""Whether what a job saves reaches storage, and what people are told about it."""

from __future__ import annotations

import pytest

from tests.planning.world import World, job_spec, opened, pending, running, script_spec, verdict
from trainmaster.contract.wire import Cause, UploadReport
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.planning.facts.job_state import Condition, JobPhase
from trainmaster_operator.planning.facts.observation import CheckpointSeen, SaveFailed

STORAGE = {"volume": {"claim": "checkpoints"}}


def stored(**fields: object) -> JobSpec:
    return job_spec(checkpoint={**STORAGE, **fields})


def condition(world: World, kind: str) -> Condition | None:
    return next((c for c in world.status.conditions if c.type == kind), None)


def stopped(world: World, **agent: object) -> list[str]:
    """The words of all events until the job is suspended and all its ranks have stopped."""
    words = []
    world.spec = world.spec.model_copy(update={"suspend": True})
    words += [event.message for event in world.write().events]
    for slot in world.slots:
        world.agent(slot, stop_ack=world.status.stopAt)
    world.write()
    for slot in world.slots:
        world.agent(slot, saved=True, **agent)
    words += [event.message for event in world.write().events]
    assert world.status.phase is JobPhase.SUSPENDED
    return words


def test_a_failed_save_is_written_down_at_once_and_holds_until_a_newer_one_is_saved() -> None:
    world = running(stored())
    assert condition(world, "CheckpointFailed") is None
    world.checkpoint = CheckpointSeen(5, 1, "storage")
    world.settle()
    world.failed_save = SaveFailed(10, 1, "No space left on device")
    decision = world.write()
    assert decision.intent  # progress may be written later, an intent is written now
    told = condition(world, "CheckpointFailed")
    assert told is not None
    assert told.status == "True"
    assert told.message == (
        "step 10 is not saved (the newest step on storage is 5): No space left on device. "
        "The newest save is retried. After the last step it is retried for at most 900 s"
    )
    assert not world.plan().intent
    world.checkpoint = CheckpointSeen(10, 1, "storage")
    world.settle()
    told = condition(world, "CheckpointFailed")
    assert told is not None
    assert (told.status, told.message) == ("False", "step 10 is saved")


def test_a_failed_save_of_an_earlier_round_is_no_news() -> None:
    world = running(stored())
    world.failed_save = SaveFailed(10, 0, "round 1 has taken the storage")
    world.settle()
    assert condition(world, "CheckpointFailed") is None


def test_a_job_whose_last_step_is_not_saved_fails() -> None:
    world = running(stored(), step=100)
    world.agent(1, verdict=verdict(1, Cause.CHECKPOINT_FAILED, message="step 100 is not saved: disk full"))
    for slot in (0, 2, 3):
        world.agent(slot, done=True)
    world.write()
    assert world.status.phase is JobPhase.FAILED
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.cause == "CheckpointFailed"
    assert "step 100 is not saved: disk full" in world.status.lastFailure.message


def test_a_rule_of_the_job_may_hold_it_instead() -> None:
    rules = [{"causes": ["CheckpointFailed"], "action": "Hold"}]
    world = running(job_spec(checkpoint=STORAGE, recovery={"rules": rules}), step=100)
    world.agent(1, verdict=verdict(1, Cause.CHECKPOINT_FAILED))
    world.write()
    assert world.status.phase is JobPhase.HELD


def test_a_job_that_is_to_stop_stops_without_its_last_step_and_says_so() -> None:
    world = running(stored())
    world.spec = world.spec.model_copy(update={"suspend": True})
    world.write()
    world.agent(1, verdict=verdict(1, Cause.CHECKPOINT_FAILED, message="step 12 is not saved: disk full"))
    decision = world.write()
    assert world.status.phase is JobPhase.SUSPENDED
    (event,) = decision.events
    assert (event.reason, "step 12 is not saved: disk full" in event.message) == ("SuspendedWithoutSaving", True)


def stalled(world: World, slot: int, seconds: float, error: str = "") -> None:
    world.agent(slot, upload=UploadReport(slot, 10, "/checkpoints", seconds, error))


def test_a_storage_that_does_not_answer_is_told_after_a_minute_and_once() -> None:
    world = running(stored())
    stalled(world, 2, 59.9)
    assert not world.plan().intent
    stalled(world, 2, 60.0)
    (event,) = world.write().events
    assert (event.type.value, event.reason) == ("Warning", "CheckpointStalled")
    assert event.message.startswith("/checkpoints has not answered for more than 60 s: job-worker-2-0 can't save step")
    told = condition(world, "CheckpointStalled")
    assert told is not None
    assert (told.status, told.message) == ("True", event.message)
    stalled(world, 2, 70.0)
    assert world.plan().status is world.status
    world.agent(2, upload=None)
    world.settle()
    told = condition(world, "CheckpointStalled")
    assert told is not None
    assert told.status == "False"


def test_a_new_leader_that_has_heard_no_agent_yet_does_not_say_that_storage_answers() -> None:
    world = running(stored())
    stalled(world, 2, 61.0)
    assert [event.reason for event in world.write().events] == ["CheckpointStalled"]
    heard, world.agents, world.leading_s = world.agents, {}, 0.0
    world.settle()
    told = condition(world, "CheckpointStalled")
    assert told is not None
    assert told.status == "True"
    world.agents, world.leading_s = heard, 1.0
    assert not world.write().events
    world.agent(2, upload=None)
    world.settle()
    told = condition(world, "CheckpointStalled")
    assert told is not None
    assert told.status == "False"


def test_a_directory_with_a_very_long_name_does_not_end_the_passes_of_a_job() -> None:
    world = running(job_spec(checkpoint={"directory": "/" + "x" * 2000}))
    world.in_cluster = True
    world.settle()
    told = condition(world, "Unprotected")
    assert told is not None
    assert len(told.message) == 1024


def test_a_last_save_that_fails_does_not_end_a_job_that_is_to_restart() -> None:
    world = running(stored(), step=100)
    world.spec = world.spec.model_copy(update={"restart": 1})
    world.agent(1, verdict=verdict(1, Cause.CHECKPOINT_FAILED, message="step 100 is not saved: disk full"))
    world.write()
    assert world.status.phase is JobPhase.SUSPENDED


def test_a_full_disk_is_no_storage_that_does_not_answer() -> None:
    world = running(stored())
    stalled(world, 2, 600.0, "No space left on device")
    world.settle()
    assert condition(world, "CheckpointStalled") is None


def test_a_job_without_storage_is_unprotected_from_its_first_pass_on() -> None:
    world = pending()
    told = condition(world, "Unprotected")
    assert told is not None
    assert told.status == "True"
    assert "a restart begins at step 0" in told.message
    assert "spec.checkpoint.volume" in told.message
    for spec in (stored(), script_spec()):
        assert condition(pending(spec), "Unprotected") is None


@pytest.mark.parametrize(
    ("spec", "asked", "done"),
    [
        (stored(), "all ranks save and stop after step", "every rank saved step"),
        (job_spec(), "nothing is saved, since the job has no spec.checkpoint", "nothing was saved"),
        (script_spec(), "others get SIGTERM", "only the script knows what it saved"),
    ],
    ids=["storage", "no storage", "script"],
)
def test_the_words_of_a_stop_are_true(spec: JobSpec, asked: str, done: str) -> None:
    saves = spec.checkpoint.folder is not None
    words = stopped(running(spec), nothing_saved=not saves)
    assert asked in words[0]
    assert done in words[-1]
    assert ("saved step" in words[-1]) == saves


def test_a_script_of_which_no_step_is_known_is_not_told_to_stop_after_one() -> None:
    words = stopped(opened(script_spec()), nothing_saved=True)
    assert words[0] == "ranks that use run.steps() stop after their next steps, others get SIGTERM"
    assert "step" not in words[-1]


def test_no_step_is_told_that_the_job_does_not_have() -> None:
    words = stopped(running(stored(), step=99))
    assert words[0] == "all ranks save and stop after step 100"
    assert words[-1] == "every rank saved step 100 and stopped"


def test_a_deleted_pod_of_a_script_is_not_told_that_anything_was_saved() -> None:
    world = running(script_spec())
    world.pod(1, deleting=True)
    world.write()
    for slot in world.slots:
        world.agent(slot, stop_ack=world.status.stopAt)
    world.write()
    for slot in world.slots:
        world.agent(slot, saved=True, nothing_saved=True)
    world.write()
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.message == (
        "pod job-worker-1-0 was deleted: every rank stopped; only the script knows what it saved"
    )


def test_the_end_of_a_recovery_tells_no_step_that_nobody_knows() -> None:
    world = running(script_spec())
    world.agent(2, verdict=verdict())
    world.write()
    for slot in world.slots:
        world.obey(slot, step=1)
    (event,) = world.write().events
    assert event.reason == "Recovered"
    assert event.message.endswith("the script does not report the step from which it continues")
    assert "None" not in event.message


def test_a_recovery_that_keeps_nothing_says_that_it_began_again() -> None:
    world = opened()
    for slot in world.slots:
        world.obey(slot, step=422, resumed=0)
    world.settle()
    world.agent(2, verdict=verdict())
    world.write()
    for slot in world.slots:
        world.obey(slot, step=1, resumed=0)
    (event,) = world.write().events
    assert event.message.endswith("began again at step 0, 422 steps lost")


def test_a_stop_tells_the_earliest_step_because_ranks_may_pass_it_before_they_hear() -> None:
    world = running(stored())
    words = stopped(world)
    assert words[0] == f"all ranks save and stop after step {world.status.progress.step + 2} at the earliest"


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        ({"deleting": True}, "pod job-worker-1-0 was deleted"),
        (
            {"deleting": True, "disruption": "EvictionByEvictionAPI"},
            "the cluster terminates pod job-worker-1-0 (EvictionByEvictionAPI)",
        ),
    ],
    ids=["by a person", "by an eviction"],
)
def test_a_stop_for_a_pod_that_leaves_names_what_ended_it(pod: dict[str, object], why: str) -> None:
    world = running(stored())
    world.pod(1, **pod)
    world.write()
    for slot in world.slots:
        world.agent(slot, stop_ack=world.status.stopAt)
    world.write()
    for slot in world.slots:
        world.agent(slot, saved=True)
    world.write()
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.message.startswith(f"{why}: ")
