"""The API's status says all that the planner's record says, and nothing that the schema doesn't know."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster_operator.api.crd import crd_schema
from trainmaster_operator.planning.eta_column import duration
from trainmaster_operator.planning.facts.job_state import (
    CheckpointStatus,
    Condition,
    FailedSave,
    Failure,
    GateStatus,
    JobPhase,
    JobState,
    Pause,
    ProgressStatus,
    Recovery,
    ReleasedStatus,
    Restarts,
    Rung,
    Spent,
    Straggler,
    Suspicion,
    Totals,
    WorkersStatus,
)
from trainmaster_operator.planning.status_mapping import (
    OtherLayout,
    merged,
    read_status,
    unknown_fields,
    write_status,
)

SCHEMA = crd_schema.job_schema()["properties"]["status"]

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
words = st.text("abcXYZ", min_size=1, max_size=8)
counts = st.integers(0, 2**40)
times = st.sampled_from(["", "2026-01-01T00:00:00.000Z", "2026-02-03T04:05:06.789Z"])
seconds = st.integers(0, 10**9).map(lambda n: n / 10**4)
"""Recoveries are kept in steps of a tenth of a millisecond."""
rates = st.floats(0, 1e9, allow_nan=False)
maybe = counts | st.none()
rungs = st.sampled_from(Rung)


def listed(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, max_size=2)


conditions = st.builds(
    Condition,
    type=words,
    status=st.sampled_from(["True", "False", "Unknown"]),
    reason=words,
    message=texts,
    lastTransitionTime=times,
    observedGeneration=counts,
)
failures = st.builds(
    Failure,
    cause=words,
    rank=maybe,
    pod=texts,
    node=texts,
    exitCode=st.integers(0, 255) | st.none(),
    signal=texts,
    message=texts,
    traceback=texts,
    step=counts,
    round=counts,
    time=times,
    rule=texts,
)
recoveries = st.builds(
    Recovery,
    round=counts,
    cause=words,
    rung=rungs,
    rank=maybe,
    pod=texts,
    step=counts,
    resumedStep=maybe,
    tier=texts,
    lostSteps=maybe,
    startedAt=times,
    totalSeconds=seconds | st.none(),
    overtaken=st.booleans(),
    clock=st.dictionaries(words, seconds, max_size=2),
)
states = st.builds(
    JobState,
    observedGeneration=counts,
    phase=st.sampled_from(JobPhase),
    leaderEpoch=counts,
    round=counts,
    roundMap=texts,
    roundMinor=counts,
    roundStore=texts,
    roundPods=texts,
    roundOpenedAt=times,
    roundPeers=counts,
    roundLastSave=counts,
    roundSavedFrom=counts,
    roundResume=texts,
    lastStore=texts,
    incarnations=st.sampled_from(["", "0", "0*4", "1,0*3"]),
    revision=texts,
    revisions=listed(texts),
    restartObeyed=counts,
    avoidNodes=listed(texts),
    avoidedInVain=st.booleans(),
    stopAt=maybe,
    stopBound=st.booleans(),
    microDivisor=counts,
    skipped=listed(st.lists(counts, min_size=2, max_size=2)),
    startTime=times,
    completionTime=times,
    workers=st.builds(
        WorkersStatus,
        desired=counts,
        replicas=counts,
        ready=counts,
        spares=counts,
        selector=texts,
        legalSizes=listed(counts),
        resizedAt=times,
        shrunkAt=times,
        nextIncarnation=counts,
        replacedAt=times,
        replacements=counts,
    ),
    released=st.builds(ReleasedStatus, times=counts, retryAt=times) | st.none(),
    gates=st.builds(GateStatus, since=times, until=times, seconds=st.floats(0.5, 1e6)) | st.none(),
    progress=st.builds(
        ProgressStatus,
        step=counts,
        totalSteps=counts,
        loss=texts,
        highestStep=counts,
        lastSave=counts,
        memoryStep=counts,
        stepsPerSecond=rates,
        tokensPerSecond=rates,
        etaSeconds=rates | st.none(),
        updatedAt=times,
    ),
    checkpoint=st.builds(CheckpointStatus, step=counts, round=counts, tier=texts, time=times) | st.none(),
    failedSave=st.builds(FailedSave, step=counts, round=counts, message=texts, time=times) | st.none(),
    restarts=st.builds(Restarts, inPlace=counts, pod=counts, full=counts, shrink=counts, free=counts),
    spent=listed(st.builds(Spent, time=times, rung=rungs, cause=words, step=st.integers(-1, 9), count=counts)),
    lastFailure=failures | st.none(),
    recoveries=listed(recoveries),
    # Totals begin with something to count: there are none that are all zero.
    totals=st.builds(
        Totals,
        failures=st.dictionaries(words, counts, max_size=2),
        recoveries=counts,
        lostSteps=st.integers(1, 2**40),
        phases=st.dictionaries(words, rates, max_size=2),
        setAside=st.dictionaries(words, rates, max_size=2),
        told=st.dictionaries(words, rates, max_size=2),
    )
    | st.none(),
    pauses=st.dictionaries(
        words, st.builds(Pause, count=st.integers(1, 2**40), typical=rates, longest=rates, total=rates), max_size=2
    ),
    pausesRound=counts,
    suspicion=st.builds(
        Suspicion,
        round=counts,
        rank=counts,
        slot=counts,
        pod=texts,
        phase=texts,
        step=counts,
        limitSeconds=rates,
        since=times,
        confirmed=st.booleans(),
        message=texts,
        traceback=texts,
    )
    | st.none(),
    straggler=st.builds(
        Straggler,
        round=counts,
        rank=counts,
        pod=texts,
        node=texts,
        computeSeconds=rates,
        usualSeconds=rates,
        since=times,
        told=st.booleans(),
    )
    | st.none(),
    firstStepAt=times,
    accountedAt=times,
    usefulSeconds=rates,
    lost=st.dictionaries(words, rates, max_size=2),
    goodput=texts,
    conditions=listed(conditions),
)


def test_the_strategy_sets_every_field() -> None:
    """A field that is added to the state must be mapped, so it must be tried."""
    full = write_status(JobState())
    assert full == {"phase": "Pending"}
    built = set(states.wrapped_strategy.kwargs)  # type: ignore[attr-defined]
    assert built == set(JobState.model_fields)


@given(states)
@settings(max_examples=60, deadline=None)
def test_a_status_that_is_written_and_read_again_is_the_same(state: JobState) -> None:
    written = write_status(state)
    assert read_status(written) == state
    assert unknown_fields(written) == {}


def unexplained(value: Any, schema: dict[str, Any], path: str = "status") -> list[str]:
    """Return fields that the schema does not list, and objects and lists that are empty."""
    found: list[str] = []
    if isinstance(value, dict):
        for name, child in value.items():
            known = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            found += [f"{path}.{name}"] if known is None else unexplained(child, known, f"{path}.{name}")
            found += [f"{path}.{name} is empty"] if child in ({}, [], None) else []
    elif isinstance(value, list):
        for child in value:
            found += unexplained(child, schema["items"], f"{path}[]")
    return found


@given(states)
@settings(max_examples=30, deadline=None)
def test_the_schema_lists_every_field_that_is_written_and_no_group_of_them_is_empty(state: JobState) -> None:
    assert unexplained(write_status(state), SCHEMA) == []


def job() -> JobState:
    """One that trains."""
    return JobState(
        phase=JobPhase.RUNNING,
        incarnations="0*4",
        workers=WorkersStatus(desired=4, replicas=3, ready=2),
        restarts=Restarts(inPlace=2, pod=1, free=5),
        progress=ProgressStatus(step=7, etaSeconds=7505.0, memoryStep=6),
        checkpoint=CheckpointStatus(step=5, round=1),
        round=2,
        conditions=[Condition(type="Running", status="True", reason="Running")],
    )


def test_what_a_column_shows_is_written() -> None:
    written = write_status(job())
    assert written["workers"] == {"desired": 4, "current": 3, "ready": 2, "summary": "2/4"}
    assert written["restarts"] == {"total": 3, "inPlace": 2, "pod": 1, "free": 5}
    assert written["progress"] == {"step": 7, "etaSeconds": 7505.0, "eta": "2h5m"}
    assert written["checkpoint"]["durable"] == {"step": 5, "round": 1, "tier": "storage"}
    assert written["checkpoint"]["memory"] == {"step": 6, "round": 2, "tier": "ram"}
    assert written["reason"] == "Running"
    assert list(written)[-1] == "internal"


def test_a_job_that_stands_still_tells_no_time_until_its_end() -> None:
    assert "eta" not in write_status(job().model_copy(update={"phase": JobPhase.SUSPENDED}))["progress"]


def test_no_restart_is_a_number_too() -> None:
    assert write_status(JobState(incarnations="0"))["restarts"] == {"total": 0}


def test_a_recovery_is_told_in_milliseconds() -> None:
    recovery = Recovery(round=2, cause="Crash", rung=Rung.IN_PLACE, totalSeconds=0.1304, clock={"fork": 0.0123})
    (told,) = write_status(JobState(recoveries=[recovery]))["recoveries"]
    assert (told["totalMilliseconds"], told["phaseMilliseconds"]) == (130.4, {"fork": 12.3})


def test_the_first_step_is_written_as_the_api_spells_it_and_read_in_both_spellings() -> None:
    recovery = Recovery(round=2, cause="Crash", rung=Rung.IN_PLACE, clock={"first_step": 0.5})
    state = job().model_copy(update={"recoveries": [recovery], "totals": Totals(phases={"first_step": 0.5})})
    written = write_status(state)
    assert written["recoveries"][0]["phaseMilliseconds"] == {"firstStep": 500.0}
    assert written["internal"]["totals"]["phases"] == {"firstStep": 0.5}
    assert read_status(written) == state
    written["recoveries"][0]["phaseMilliseconds"] = {"first_step": 500.0}
    written["internal"]["totals"]["phases"] = {"first_step": 0.5}
    assert read_status(written) == state


def test_what_another_version_wrote_survives_a_write() -> None:
    stored = write_status(job())
    stored["newer"] = {"a": 1}
    stored["workers"]["newer"] = "x"
    stored["internal"]["stop"] = {"newer": 3}
    kept = unknown_fields(stored)
    assert kept == {"newer": {"a": 1}, "workers": {"newer": "x"}, "internal": {"stop": {"newer": 3}}}
    written = write_status(read_status(stored).model_copy(update={"stopAt": 9}), kept)
    assert (written["newer"], written["workers"]["newer"]) == ({"a": 1}, "x")
    assert written["internal"]["stop"] == {"step": 9, "newer": 3}


def foreign(count: int) -> list[dict[str, Any]]:
    """Return conditions of other programs, the newest first, each with a message as long as the API allows."""
    return [
        {
            "type": f"example.com/{number}",
            "status": "True",
            "reason": "Set",
            "message": "x" * 32768,
            "lastTransitionTime": f"2026-01-01T00:{59 - number:02}:00Z",
        }
        for number in range(count)
    ]


def test_conditions_of_other_programs_are_read_and_written_as_they_are() -> None:
    stored = write_status(job())
    stored["conditions"] += foreign(31)
    assert write_status(read_status(stored))["conditions"] == stored["conditions"]


def test_the_oldest_condition_of_another_program_gives_way_to_one_of_ours() -> None:
    stored = write_status(job())
    stored["conditions"] = [*foreign(31), *stored["conditions"]]
    state = read_status(stored)
    ours = Condition(type="Failed", status="True", reason="Crash", lastTransitionTime="2025-01-01T00:00:00.000Z")
    written = write_status(state.model_copy(update={"conditions": [*state.conditions, ours]}))["conditions"]
    assert len(written) == SCHEMA["properties"]["conditions"]["maxItems"]
    assert [one["type"] for one in written] == [*(f"example.com/{n}" for n in range(30)), "Running", "Failed"]


def test_what_is_written_now_wins_over_what_is_kept() -> None:
    assert merged({"a": 1, "b": {"c": 2}}, {"a": 3, "b": {"d": 4}}) == {"a": 3, "b": {"d": 4, "c": 2}}


@pytest.mark.parametrize("status", [{"workers": 3}, {"checkpoint": {"memory": 4}}, {"recoveries": [1]}], ids=str)
def test_another_layout_is_told_in_a_sentence(status: dict[str, Any]) -> None:
    with pytest.raises(OtherLayout, match="groups of fields are expected"):
        read_status(status)


@pytest.mark.parametrize(
    ("length", "text"),
    [(0, "0s"), (45.4, "45s"), (200, "3m20s"), (180, "3m"), (7505, "2h5m"), (7200, "2h"), (370_800, "4d7h")],
)
def test_lengths_of_time_are_shown_in_two_units(length: float, text: str) -> None:
    assert duration(length) == text
