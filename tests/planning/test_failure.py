"""What evidence counts first, and what a failure does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.planning.world import NOW, World, job_spec, recovered, running, script_spec, verdict
from trainmaster.contract.wire import Cause, termination_message
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState, Restarts, Rung
from trainmaster_operator.planning.facts.observation import EventType
from trainmaster_operator.planning.rounds import round_pod_identity


def test_a_dead_rank_restarts_all_ranks_in_place_in_one_write() -> None:
    world = running(step=10)
    offered = world.agents[0].next_store
    assert offered is not None
    world.agent(2, verdict=verdict(signal="SIGKILL", exit_code=-9, age_s=0.02), verdict_age_s=0.05)
    decision = world.write()
    assert decision.intent
    assert (decision.create, decision.delete) == ((), ())
    status = world.status
    assert (status.round, status.phase) == (2, JobPhase.RECOVERING)
    assert status.roundStore == f"{offered.host}:{offered.port}"
    assert status.restarts == Restarts(inPlace=1, pod=0, full=0, free=0)
    assert status.lastFailure is not None
    assert (status.lastFailure.rank, status.lastFailure.signal, status.lastFailure.round) == (2, "SIGKILL", 1)
    (recovery,) = status.recoveries
    assert (recovery.round, recovery.cause, recovery.rung, recovery.step) == (2, "Crash", Rung.IN_PLACE, 10)
    assert recovery.clock == {"detect": 0.02, "decide": 0.03}
    assert [e.type for e in decision.events] == [EventType.WARNING]


def test_a_failure_is_counted_once_wherever_the_operator_dies() -> None:
    world = running()
    world.agent(2, verdict=verdict())
    world.plan()  # it dies before the write
    world.write()  # it dies after the write
    again = world.plan()
    assert not again.intent
    assert again.status.restarts.inPlace == 1
    world.epoch, world.leading_s, world.agents = 2, 0.0, {}
    fresh = world.plan()
    assert not fresh.intent
    assert (fresh.create, fresh.delete) == ((), ())


def test_the_first_cause_counts_and_not_the_cascade_behind_it() -> None:
    world = running()
    world.agent(0, verdict=verdict(0, cascade=True), verdict_age_s=0.5)
    world.agent(1, verdict=verdict(1, cascade=True), verdict_age_s=0.4)
    world.agent(3, verdict=verdict(3, message="the cause"), verdict_age_s=0.1)
    world.write()
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.message == "the cause"


def test_ten_ranks_that_lost_their_peer_are_no_cause_whenever_its_own_word_comes() -> None:
    for age_s in (0.0, 0.9):
        world = running(job_spec(12))
        for rank in range(10):
            world.agent(rank, verdict=verdict(rank, cascade=True), verdict_age_s=0.5 + rank / 100)
        assert not world.plan().intent
        cause = verdict(11, Cause.HARDWARE_FAULT, message="uncorrectable ECC error")
        world.agent(11, verdict=cause, verdict_age_s=age_s)
        world.write()
        assert world.status.lastFailure is not None
        assert (world.status.lastFailure.cause, world.status.lastFailure.rank) == ("HardwareFault", 11)
        assert world.status.restarts == Restarts(pod=1)


def test_of_two_causes_the_earlier_one_counts() -> None:
    world = running()
    world.agent(0, verdict=verdict(0), verdict_age_s=0.1)
    world.agent(3, verdict=verdict(3), verdict_age_s=0.3)
    world.write()
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.rank == 3


def test_ranks_that_only_lost_a_peer_wait_a_second_for_the_cause() -> None:
    world = running()
    world.agent(0, verdict=verdict(0, cascade=True), verdict_age_s=0.25)
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s == pytest.approx(0.75)
    world.agent(0, verdict_age_s=1.0)
    assert world.write().status.restarts.inPlace == 1


def test_a_member_that_says_nothing_since_its_peers_lost_one_is_waited_for() -> None:
    world = running()
    world.agent(0, verdict=verdict(0, cascade=True), verdict_age_s=1.5)
    world.agent(2, silent_s=1.6)
    assert not world.plan().intent
    world.agent(2, silent_s=0.2)  # heard after all
    assert world.write().status.restarts.inPlace == 1


def test_a_new_leader_waits_for_a_member_that_it_has_not_heard_however_old_the_word_of_the_others_is() -> None:
    world = running()
    world.leading_s = 0.3
    world.agents.pop(2)
    for slot in (0, 1, 3):
        world.agent(slot, verdict=verdict(slot, cascade=True), verdict_age_s=100.0)
    decision = world.plan()
    assert not decision.intent
    assert decision.requeue_after_s is not None
    world.pod(2, phase="Failed", exit_code=137)
    status = world.write().status
    assert (status.restarts.inPlace, status.restarts.pod) == (0, 1)


def test_silence_explains_more_than_what_the_others_lost() -> None:
    world = running()
    world.pod(2, running_s=1000.0)
    world.agent(2, silent_s=100.0)
    for slot in (0, 1, 3):
        world.agent(slot, verdict=verdict(slot, cascade=True), verdict_age_s=99.0)
    status = world.write().status
    assert (status.restarts.inPlace, status.restarts.pod) == (0, 1)
    assert status.recoveries[-1].cause == "AgentLost"


def test_a_verdict_of_an_older_round_is_no_longer_evidence() -> None:
    world = running()
    world.agent(2, verdict=verdict())
    world.write()
    world.agent(2, round=2, ranks=())
    assert not world.plan().intent


@pytest.mark.parametrize(
    ("last_words", "words"),
    [
        ({"cause": Cause.CONFIG_ERROR, "exit_code": 2}, "the configuration is wrong"),
        ({"cause": Cause.CONFIG_ERROR, "exit_code": 93}, "the configuration is wrong"),
        ({"cause": Cause.DATA_ERROR, "exit_code": 91}, "the data is wrong"),
        ({"cause": Cause.DIVERGED, "exit_code": 92}, "training diverged"),
        ({"cause": Cause.CRASH, "exit_code": 93}, "a restart would not help"),
    ],
)
def test_a_failure_that_a_restart_cannot_help_fails_the_job_at_once(last_words: dict[str, Any], words: str) -> None:
    world = running()
    world.agent(0, verdict=verdict(0, cascade=True), verdict_age_s=5.0)
    world.agent(1, verdict=verdict(1, message="no such file", **last_words))
    world.write()
    assert world.status.phase is JobPhase.FAILED
    assert world.status.lastFailure is not None
    assert words in world.status.lastFailure.message
    assert "no such file" in world.status.lastFailure.message
    assert world.status.restarts.inPlace == 0


def test_a_recovery_that_ends_in_the_failure_of_the_job_is_not_left_open() -> None:
    world = running()
    world.agent(2, verdict=verdict())
    world.write()
    for slot in world.slots:
        world.obey(slot)
    world.agent(1, verdict=verdict(1, round=2, cause=Cause.CONFIG_ERROR, exit_code=93))
    world.write()
    assert world.status.phase is JobPhase.FAILED
    (recovery,) = world.status.recoveries
    assert (recovery.overtaken, recovery.totalSeconds is None) == (True, False)


def test_a_crash_whose_message_is_empty_still_says_something() -> None:
    world = running()
    world.agent(1, verdict=verdict(1, message="", last_lines=["one", "Segmentation fault"]))
    world.write()
    assert world.status.lastFailure is not None
    assert world.status.lastFailure.message == "Segmentation fault"


def test_failing_hardware_is_left_behind_with_its_pod() -> None:
    world = running()
    world.agent(1, verdict=verdict(1, Cause.HARDWARE_FAULT))
    world.write()
    assert world.status.incarnations == "0,1,0*2"
    assert (world.status.round, world.status.roundStore) == (2, "")
    assert world.status.restarts.pod == 1


@pytest.mark.parametrize(
    ("pod", "cause", "counted"),
    [
        ({"phase": "Failed", "exit_code": 137}, Cause.AGENT_LOST, "pod"),
        ({"phase": "Failed", "exit_code": 137, "reason": "OOMKilled"}, Cause.OUT_OF_MEMORY, "pod"),
        ({"phase": "Failed", "reason": "Evicted"}, Cause.EVICTED, "free"),
        ({"phase": "Failed", "exit_code": 137, "disruption": "TerminationByKubelet"}, Cause.EVICTED, "free"),
        ({"phase": "Failed", "exit_code": 137, "disruption": "PreemptionByScheduler"}, Cause.PREEMPTED, "free"),
        ({"phase": "Failed", "exit_code": 137, "deleting": True}, Cause.EVICTED, "free"),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, Cause.REFUSED, "free"),
        ({"phase": "Failed", "reason": "OutOfnvidia.com/gpu"}, Cause.REFUSED, "free"),
        ({"phase": "Failed", "reason": "InitContainerFailed"}, Cause.CRASH, "pod"),
        ({"phase": "Failed", "exit_code": 128, "reason": "StartError"}, Cause.REFUSED, "free"),
        ({"phase": "Failed", "exit_code": 128, "reason": "StartError", "deleting": True}, Cause.EVICTED, "free"),
        ({"phase": "Failed", "exit_code": 90}, Cause.PREEMPTED, "free"),
        ({"phase": "Succeeded", "exit_code": 0}, Cause.AGENT_LOST, "pod"),
        (None, Cause.EVICTED, "free"),
    ],
)
def test_a_pod_that_ended_is_replaced_behind_a_fence(pod: dict[str, Any] | None, cause: Cause, counted: str) -> None:
    world = running()
    if pod is None:
        del world.pods[1]
    else:
        world.pod(1, **pod)
    world.write()
    status = world.status
    assert (status.round, status.roundStore, status.incarnations) == (2, "", "0,1,0*2")
    assert status.phase is JobPhase.RECOVERING
    assert status.lastFailure is not None
    assert status.lastFailure.cause == cause.value
    assert getattr(status.restarts, counted) == 1
    if pod is not None:
        world.plan()
        del world.pods[1]
    recovered(world, step=12, resumed=10)
    assert (world.status.phase, world.status.round) == (JobPhase.RUNNING, 2)


def test_a_pod_that_fills_its_nodes_disk_each_time_is_not_evicted_for_ever() -> None:
    world = running()
    for _ in range(20):
        world.pod(1, phase="Failed", reason="Evicted", message="The node was low on ephemeral-storage")
        world.write()
        if world.status.phase is JobPhase.FAILED:
            break
        world.pods, world.agents = {}, {}
        for slot in world.slots:
            world.pod(slot)
            world.agent(slot)
        world.settle()
        for slot in world.slots:
            world.obey(slot)
    assert world.status.phase is JobPhase.FAILED
    assert world.status.restarts == Restarts(inPlace=0, pod=3, full=2, free=3)


def test_evictions_by_the_cluster_are_free_however_many() -> None:
    world = running()
    for _ in range(20):
        world.pod(1, phase="Failed", disruption="EvictionByEvictionAPI")
        world.write()
        world.pods, world.agents = {}, {}
        for slot in world.slots:
            world.pod(slot)
            world.agent(slot)
        world.settle()
        for slot in world.slots:
            world.obey(slot)
    assert world.status.restarts == Restarts(inPlace=0, pod=0, full=0, free=20)


def test_a_program_that_is_not_in_the_image_fails_the_job_at_once() -> None:
    world = running()
    words = 'exec: "python3": executable file not found in $PATH: unknown'
    world.pod(1, phase="Failed", exit_code=128, reason="StartError", message=words)
    world.write()
    assert world.status.phase is JobPhase.FAILED
    assert world.status.lastFailure is not None
    assert "executable file not found" in world.status.lastFailure.message


@pytest.mark.parametrize("reason", ["StartError", "ContainerCannotRun"])
@pytest.mark.parametrize(
    "words",
    [
        "can't start 'train': [Errno 2] No such file or directory: 'train'",
        "chdir to cwd (/work) set in config.json failed: not a directory: unknown",
        "unable to find user trainer: no matching entries in passwd file",
        "failed to create shim task: cgroups: cannot find cgroup mount destination",
        "",
    ],
)
def test_a_config_error_is_never_restarted(reason: str, words: str) -> None:
    world = running()
    world.pod(1, phase="Failed", exit_code=128, reason=reason, message=words)
    world.write()
    assert world.status.lastFailure is not None
    assert (world.status.lastFailure.cause == "ConfigError") is (world.status.phase is JobPhase.FAILED)
    assert (world.status.phase is JobPhase.FAILED) is (words != "" and "cgroup" not in words)


def left_behind(**fields: Any) -> str:
    said = verdict(5, Cause.DATA_ERROR, traceback="Traceback: no shard", message="no shard 7", **fields)
    return termination_message.render(said).decode()


def test_what_a_pod_left_behind_is_its_last_word_when_nobody_had_heard_it() -> None:
    world = running()
    world.pod(1, phase="Failed", exit_code=1, message=left_behind(step=12))
    world.write()
    failure = world.status.lastFailure
    assert world.status.phase is JobPhase.FAILED
    assert failure is not None
    assert (failure.cause, failure.rank, failure.traceback) == ("DataError", 5, "Traceback: no shard")
    assert "no shard 7" in failure.message


@pytest.mark.parametrize("fields", [{"round": 7}, {"cascade": True}], ids=str)
def test_words_of_another_round_or_about_a_peer_are_not_the_cause(fields: dict[str, Any]) -> None:
    world = running()
    world.pod(1, phase="Failed", exit_code=137, reason="OOMKilled", message=left_behind(**fields))
    world.write()
    failure = world.status.lastFailure
    assert failure is not None
    assert (failure.cause, failure.rank, failure.traceback) == ("OutOfMemory", None, "")
    assert "no shard" not in failure.message


def test_pods_that_ended_together_are_replaced_together_and_counted_once() -> None:
    world = running()
    world.pod(1, phase="Failed", exit_code=1)
    world.pod(3, phase="Failed", reason="Evicted")
    world.write()
    assert world.status.incarnations == "0,1,0,1"
    assert world.status.restarts == Restarts(inPlace=0, pod=1, full=0, free=0)


@pytest.mark.parametrize("code", [2, 91, 92, 93])
def test_a_pod_whose_agent_says_that_a_restart_cannot_help_fails_the_job(code: int) -> None:
    world = running()
    world.pod(1, phase="Failed", exit_code=code, message="TRAINMASTER_SLOT is not set")
    world.write()
    assert world.status.phase is JobPhase.FAILED
    assert world.status.lastFailure is not None
    assert "TRAINMASTER_SLOT is not set" in world.status.lastFailure.message


def test_a_pod_that_ends_before_any_round_needs_no_fence() -> None:
    world = World()
    world.settle()
    for slot in world.slots:
        world.pod(slot)
    world.pod(0, phase="Failed", exit_code=1)
    world.write()
    assert (world.status.round, world.status.incarnations) == (0, "1,0*3")


def test_a_lost_store_ends_its_round_and_counts_nothing_at_first() -> None:
    world = running()
    for n in range(2, 6):
        world.agent(0, store_lost=True)
        world.write()
        assert world.status.round == n
        for slot in world.slots:
            world.obey(slot)
    assert world.status.restarts == Restarts(inPlace=1, pod=0, full=0, free=3)


def test_a_storage_that_a_newer_round_owns_lifts_the_round_above_it() -> None:
    world = running()
    words = "round 1 can't take /ckpt/round-9999: round 41 has it"
    world.agent(0, verdict=verdict(0, Cause.FENCED, exit_code=94, message=words))
    world.write()
    assert (world.status.round, world.status.restarts.free) == (42, 1)


def test_two_jobs_on_one_storage_end_in_words() -> None:
    world = running()
    for _ in range(4):
        n = world.status.round
        words = f"round {n} can't take /ckpt: round {n + 5} has it"
        world.agent(0, verdict=verdict(0, Cause.FENCED, round=n, message=words))
        world.write()
        for slot in world.slots:
            world.obey(slot)
    assert world.status.phase is JobPhase.FAILED
    assert world.status.lastFailure is not None
    assert "another job writes into the same checkpoint directory" in world.status.lastFailure.message


def test_the_ladder_is_climbed_rung_by_rung_without_progress() -> None:
    world = running(job_spec(2))
    phases = []
    for _ in range(12):
        world.agent(1, verdict=verdict(1, round=world.status.round))
        world.write()
        r = world.status.restarts
        phases.append((r.inPlace, r.pod, r.full, world.status.phase))
        if world.status.phase is JobPhase.FAILED:
            break
        recovered(world, step=0)
    recovering = JobPhase.RECOVERING
    assert phases == [
        *((n, 0, 0, recovering) for n in (1, 2, 3)),
        *((3, n, 0, recovering) for n in (1, 2, 3)),
        *((3, 3, n, recovering) for n in (1, 2)),
        (3, 3, 2, JobPhase.FAILED),
    ]
    assert world.status.incarnations == "5*2"  # three of slot 1, then two of all, above the highest
    assert world.status.lastFailure is not None
    assert "the recovery budget is exhausted after 3 restarts in place" in world.status.lastFailure.message


def test_neither_new_pods_nor_a_suspend_nor_another_operator_set_back_what_was_counted() -> None:
    world = running(job_spec(2), step=10)
    for _ in range(3):
        world.agent(1, verdict=verdict(1, round=world.status.round))
        world.write()
        recovered(world, step=0)
    spent = world.status.spent
    world.spec = world.spec.model_copy(update={"suspend": True})
    world.settle()
    for slot in world.slots:
        world.agent(slot, stop_ack=world.status.stopAt, saved=True)
    world.settle()
    assert world.status.phase is JobPhase.SUSPENDED
    world.spec = world.spec.model_copy(update={"suspend": False})
    world.pods, world.agents, world.epoch = {}, {}, 2
    world.settle()
    recovered(world, step=10, resumed=10)
    assert (world.status.restarts.inPlace, world.status.spent) == (3, spent)
    world.agent(1, verdict=verdict(1, round=world.status.round))
    world.write()
    assert world.status.restarts.pod == 1, "the fourth crash without progress costs a pod"


@pytest.mark.parametrize(("beyond", "in_place"), [(10, 6), (0, 3)])
def test_a_script_makes_progress_by_steps_beyond_the_highest_one_alone(beyond: int, in_place: int) -> None:
    world = running(script_spec(2), step=50)
    for number in range(1, 7):
        world.agent(1, verdict=verdict(1, round=world.status.round))
        world.write()
        assert world.status.phase is JobPhase.RECOVERING
        recovered(world, step=50 + number * beyond, resumed=40)
    assert world.status.restarts.inPlace == in_place


def test_a_failure_of_a_whole_status_stays_below_16_kb() -> None:
    world = running()
    world.agent(2, verdict=verdict(message="m" * 100_000, traceback="t" * 100_000))
    world.write()
    assert world.status.lastFailure is not None
    assert len(world.status.lastFailure.message) == 1024
    assert world.status.lastFailure.traceback.endswith("t" * 100)
    assert len(world.status.model_dump_json(exclude_none=True)) < 16_384


def test_the_status_survives_json_unchanged() -> None:
    world = running()
    world.agent(2, verdict=verdict(), verdict_age_s=0.123456)
    written = world.plan().status
    assert JobState.model_validate_json(written.model_dump_json(exclude_none=True)) == written


def test_the_clock_of_a_recovery_starts_when_the_rank_died() -> None:
    world = running()
    world.agent(2, verdict=verdict(), verdict_age_s=2.0)
    world.now = NOW + 100
    world.write()
    assert world.status.recoveries[0].startedAt == "2023-11-14T22:14:58.000Z"


def test_another_pod_under_the_name_of_a_member_never_takes_part_in_its_round() -> None:
    world = running(step=10)
    world.pod(1, uid="created by a request that was given up long ago")
    assert round_pod_identity.replaced(world.status, world.pods.values())
    world.write()
    status = world.status
    assert (status.round, status.roundStore, status.incarnations) == (2, "", "0*4")
    assert (status.phase, status.restarts.free) == (JobPhase.RECOVERING, 1)
    assert status.lastFailure is not None
    assert "another pod has its name now" in status.lastFailure.message
    assert not round_pod_identity.replaced(status, world.pods.values())  # a round that forms may have any pods
    recovered(world, step=12, resumed=10)
    assert (world.status.phase, world.status.round) == (JobPhase.RUNNING, 2)
    assert not round_pod_identity.replaced(world.status, world.pods.values())


def test_the_pods_of_a_round_are_known_by_its_own_slots_alone() -> None:
    world = running(step=10)
    spare = replace(world.pods[0], slot=7, uid="a spare's")
    other = replace(world.pods[0], incarnation=7, uid="an older one's")
    assert not round_pod_identity.replaced(world.status, [*world.pods.values(), spare, other])
    missing = [world.pods[slot] for slot in world.slots if slot != 2]
    assert not round_pod_identity.replaced(world.status, missing)  # one that is gone is another matter
    unknown = world.status.model_copy(update={"roundPods": ""})  # by an operator that didn't write it
    assert not round_pod_identity.replaced(unknown, [replace(pod, uid="x") for pod in world.pods.values()])
