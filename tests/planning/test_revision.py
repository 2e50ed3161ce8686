"""A run keeps what it began with; only a person begins another one."""

from __future__ import annotations

import pytest

from tests.planning.world import World, job_spec, opened, pending, recovered, running, verdict
from trainmaster_operator.planning.facts.job_state import Condition, JobPhase
from trainmaster_operator.planning.lifecycle.revision import LOST, PENDING

WAITS = ("training.optimizer.lr",)


def begun(world: World) -> World:
    """The job as it is after its run began as revision a, and something was edited since."""
    world.status = world.status.model_copy(update={"revision": "job-a", "revisions": ["job-a"]})
    world.revision, world.waiting = "job-b", WAITS
    return world


def told(world: World, kind: str) -> Condition | None:
    return next((c for c in world.status.conditions if c.type == kind), None)


def saved(world: World) -> None:
    """All ranks stop at the step that they were given."""
    world.settle()
    for slot in world.members:
        world.agent(slot, stop_ack=world.status.stopAt)
    world.settle()
    assert world.status.stopBound
    for slot in world.members:
        world.agent(slot, saved=True)


def test_the_first_write_names_the_revision() -> None:
    world = World(job_spec(restart=3), revision="job-a")
    world.write()
    assert (world.status.revision, world.status.revisions, world.status.restartObeyed) == ("job-a", ["job-a"], 3)


@pytest.mark.parametrize(
    "budget", [{}, {"inPlace": 0}, {"inPlace": 0, "pod": 0}], ids=["in place", "one pod", "all pods"]
)
def test_no_restart_of_the_operators_own_begins_another_run(budget: dict[str, int]) -> None:
    world = begun(running(job_spec(recovery={"budget": budget})))
    world.settle()
    world.agent(2, verdict=verdict())
    world.settle()
    assert world.status.phase is JobPhase.RECOVERING
    recovered(world, step=20, resumed=10)
    assert world.status.phase is JobPhase.RUNNING
    assert world.status.revision == "job-a"


def test_a_condition_and_an_event_name_the_fields_that_wait_and_for_what() -> None:
    world = begun(running())
    (event,) = world.write().events
    known = told(world, PENDING)
    assert known is not None
    assert (known.status, known.reason, known.message) == ("True", "EditsWait", event.message)
    assert known.message == (
        "spec.training.optimizer.lr changed while the job runs and will take effect in the next run; suspend and "
        "resume the job, or run `trainmaster restart job`, to begin a run with the new values"
    )
    assert world.write().events == ()
    assert world.status.observedGeneration == 1


def test_an_edit_that_is_taken_back_waits_no_more() -> None:
    world = begun(running())
    world.settle()
    world.revision, world.waiting = "job-a", ()
    world.settle()
    known = told(world, PENDING)
    assert known is not None
    assert (known.status, known.reason, known.message) == ("False", "NothingWaits", "")


def test_an_upgrade_alone_is_told_to_nobody() -> None:
    world = begun(running())
    world.waiting = ()
    assert not world.plan().intent
    assert told(world, PENDING) is None


def test_a_resume_begins_a_run_with_what_the_spec_says_then() -> None:
    world = begun(running(job_spec(checkpoint={"directory": "/c"})))
    world.spec = job_spec(checkpoint={"directory": "/c"}, suspend=True)
    saved(world)
    world.write()
    assert (world.status.phase, world.status.revision) == (JobPhase.SUSPENDED, "job-a")
    world.spec, world.waiting = job_spec(checkpoint={"directory": "/c"}), ()
    world.write()
    assert (world.status.phase, world.status.revision) == (JobPhase.PENDING, "job-b")
    assert world.status.revisions == ["job-b", "job-a"]


def test_a_restart_that_a_person_asks_for_saves_first_and_then_begins_a_run() -> None:
    world = begun(running(job_spec(checkpoint={"directory": "/c"})))
    world.spec = job_spec(checkpoint={"directory": "/c"}, restart=1)
    assert world.plan().events[0].reason == "Restarting"
    saved(world)
    world.write()
    assert world.status.phase is JobPhase.SUSPENDED
    world.write()
    assert (world.status.phase, world.status.revision) == (JobPhase.PENDING, "job-b")
    assert world.status.restartObeyed == 1
    assert world.status.incarnations == "1*4"
    world.waiting = ()
    recovered(world, step=20, resumed=12)
    assert world.status.phase is JobPhase.RUNNING
    assert not world.plan().intent


def test_a_lower_number_restarts_nothing() -> None:
    world = begun(running())
    world.status = world.status.model_copy(update={"restartObeyed": 2})
    world.spec = job_spec(restart=1)
    world.settle()
    assert world.status.phase is JobPhase.RUNNING


def test_a_restart_releases_a_held_job() -> None:
    rules = [{"name": "look", "action": "Hold"}]
    world = begun(running(job_spec(recovery={"rules": rules})))
    world.agent(2, verdict=verdict())
    world.settle()
    assert world.status.phase is JobPhase.HELD
    world.spec = job_spec(recovery={"rules": rules}, restart=1)
    world.write()
    world.write()
    assert (world.status.phase, world.status.revision) == (JobPhase.PENDING, "job-b")


@pytest.mark.parametrize("resumed", [False, True], ids=["first start", "after a resume"])
def test_before_a_round_has_begun_an_edit_is_obeyed_at_once_with_fresh_pods(resumed: bool) -> None:
    world = begun(pending())
    if resumed:
        world.status = world.status.model_copy(update={"round": 3})
    for slot in world.slots:
        world.pod(slot, phase="Pending", reason="ImagePullBackOff")
    (event,) = world.write().events
    assert event.reason == "RevisionChanged"
    assert "spec.training.optimizer.lr changed before the first round" in event.message
    assert (world.status.revision, world.status.incarnations) == ("job-b", "1*4")
    world.waiting = ()
    assert {pod.name for pod in world.settle().delete} == {f"job-worker-{slot}-0" for slot in world.slots}
    assert told(world, PENDING) is None


def test_an_edit_raises_incarnations_though_no_pod_is_seen() -> None:
    """One may have been made that the watch hasn't told of yet."""
    world = begun(World())
    world.status = world.status.model_copy(update={"revision": ""})
    world.revision, world.waiting = "job-a", ()
    world.write()
    world.revision, world.waiting = "job-b", WAITS
    world.write()
    assert world.status.incarnations == "1*4"


def test_an_upgrade_before_a_round_has_begun_replaces_no_pod() -> None:
    world = begun(pending())
    world.waiting = ()
    decision = world.plan()
    assert not decision.intent
    assert decision.status.incarnations == "0*4"


def test_an_edit_in_an_open_round_waits() -> None:
    world = begun(opened())
    world.settle()
    assert world.status.revision == "job-a"
    assert told(world, PENDING) is not None


def test_an_edit_while_a_job_recovers_waits() -> None:
    world = running(job_spec(recovery={"budget": {"inPlace": 0, "pod": 0}}))
    begun(world)
    world.agent(2, verdict=verdict())
    world.settle()
    assert (world.status.phase, world.status.roundStore) == (JobPhase.RECOVERING, "")
    assert world.status.revision == "job-a"


def test_a_run_whose_revision_is_lost_gets_no_pods_and_says_so() -> None:
    world = begun(running(job_spec(recovery={"budget": {"inPlace": 0}})))
    world.waiting, world.revision_lost = (), True
    world.agent(2, verdict=verdict())
    world.settle()
    world.pods.pop(2)
    decision = world.settle()
    assert decision.create == ()
    known = told(world, LOST)
    assert known is not None
    assert known.status == "True"
    assert known.message.startswith("ControllerRevision job-a was deleted and the job or the operator has changed")
    world.revision_lost = False
    assert len(world.settle().create) == 1


def test_a_resume_that_begins_another_run_raises_incarnations_though_nothing_ran() -> None:
    world = begun(World(job_spec(suspend=True), revision="job-a"))
    world.status = world.status.model_copy(update={"revision": "", "revisions": []})
    world.revision, world.waiting = "job-a", ()
    world.settle()
    assert (world.status.phase, world.status.incarnations) == (JobPhase.SUSPENDED, "0*4")
    world.spec, world.revision = job_spec(), "job-b"
    world.write()
    assert (world.status.revision, world.status.incarnations) == ("job-b", "1*4")


def test_the_names_of_the_last_three_revisions_are_kept() -> None:
    world = World(job_spec(), revision="job-0")
    world.settle()
    for number in range(1, 5):
        world.revision, world.waiting = f"job-{number}", WAITS
        world.write()
    assert world.status.revisions == ["job-4", "job-3", "job-2"]
