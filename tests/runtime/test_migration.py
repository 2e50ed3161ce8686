"""Jobs that a former version started are told so, and nothing else happens to them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.former import former_status
from tests.runtime.fakes import job, pod
from tests.runtime.test_reconcile import directives, operating
from trainmaster.contract.wire import Identity, Report
from trainmaster_operator.cluster.port import EVENT, JOB, POD, REVISION, Invalid
from trainmaster_operator.control.fleet import Refused
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.planning.plan import plan
from trainmaster_operator.runtime.virtual_clock import run_virtual

OLD_SPELLING = {
    "training": {"data": {"path": "/data"}, "steps": 10, "batch": {"global": 2}, "checkpoint": {"every": 5}}
}


def left_behind(status: dict[str, Any] | None, **spec: Any) -> MemoryStore:
    """A job with two pods, as the version before leaves them."""
    store = MemoryStore()
    made = store.create(JOB, job(**spec))
    if status is not None:
        made = store.update_status(JOB, {**made, "status": status})
    for slot in ("0", "1"):
        labels = {"trainmaster.dev/role": "worker", "trainmaster.dev/slot": slot, "trainmaster.dev/incarnation": "0"}
        store.create(POD, pod(f"job-worker-{slot}-0", made, **labels))
    return store


def stored(store: MemoryStore) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The status without the condition, and those conditions."""
    status = dict(store.find(JOB, "space", "job").get("status") or {})
    conditions = status.pop("conditions", [])
    others = [c for c in conditions if c["type"] != "NeedsMigration"]
    return {**status, "conditions": others}, [c for c in conditions if c["type"] == "NeedsMigration"]


CASES = {
    "running": (former_status(), {}),
    "finished": (former_status("Succeeded"), {"ttlSecondsAfterFinished": 0}),
    "suspended": (former_status("Suspended"), {"suspend": True}),
    "resumed by a person": (former_status("Suspended"), {}),
    "asked to restart": (former_status(), {"restart": 1}),
    "a spec in the former spelling": (former_status(), OLD_SPELLING),
    "a spec that nobody understands": (former_status(), {"workers": {"replicas": "many"}}),
}


@pytest.mark.parametrize(("status", "spec"), CASES.values(), ids=CASES)
def test_a_job_of_a_former_version_gets_a_condition_and_stays_as_it_is(status: dict[str, Any], spec: Any) -> None:
    store = left_behind(status, **spec)
    before = {p["metadata"]["uid"] for p in store.list(POD, "space").items}

    async def main() -> None:
        async with operating(plan, store=store) as (_, spy, operator, _):
            await asyncio.sleep(60)
            assert {p["metadata"]["uid"] for p in store.list(POD, "space").items} == before
            store.delete(POD, "space", "job-worker-1-0")
            await asyncio.sleep(1200)
            assert [p["metadata"]["name"] for p in store.list(POD, "space").items] == ["job-worker-0-0"]
            assert [call for call in spy.calls if call.split()[0] != "get"] == [f"update_status {JOB}"]
            uid = store.find(JOB, "space", "job")["metadata"]["uid"]
            identity = Identity(uid, "space", "job", role="worker", slot=0, incarnation=0, pod_uid="uid")
            with pytest.raises(Refused) as refused:
                await operator.fleet.report(identity, Report(identity, round=2))
            assert refused.value.status == 503, "its agents are not told that the job is gone"

    run_virtual(main())
    rest, (condition,) = stored(store)
    assert rest == status
    assert (condition["status"], condition["reason"], condition["observedGeneration"]) == ("True", "FormerVersion", 1)
    assert "leaves the job and its pods as they are" in condition["message"]
    assert store.list(REVISION, "space").items == []


def test_a_job_in_the_former_spelling_that_was_never_started_is_not_started() -> None:
    store = MemoryStore()
    store.create(JOB, job(**OLD_SPELLING))

    async def main() -> None:
        async with operating(plan, store=store) as _:
            await asyncio.sleep(60)

    run_virtual(main())
    _, (condition,) = stored(store)
    assert "(spec.training.checkpoint.every)" in condition["message"]
    assert store.list(POD, "space").items == []


def test_the_condition_replaces_the_error_that_a_former_operator_left() -> None:
    """Between the upgrade of the definition and its own end, the former operator can't read the job."""
    message = "spec.restart: Extra inputs are not permitted"
    error = {"type": "ReconcileError", "status": "True", "reason": "InvalidJob", "message": message}
    status = former_status()
    store = left_behind({**status, "conditions": [*status["conditions"], error]})

    async def main() -> None:
        async with operating(plan, store=store) as _:
            await asyncio.sleep(60)

    run_virtual(main())
    rest, told = stored(store)
    assert rest == status
    assert len(told) == 1

    # The upgrade was undone and made again.
    store.update_status(JOB, {**store.find(JOB, "space", "job"), "status": {**status, "conditions": [*told, error]}})
    run_virtual(main())
    rest, told = stored(store)
    assert rest == {**status, "conditions": []}
    assert len(told) == 1


def test_an_event_tells_it_where_the_api_server_takes_no_condition() -> None:
    store = left_behind(former_status())

    async def main() -> None:
        async with operating(plan, tell=directives, store=store) as (_, spy, _, _):
            spy.refusals["update_status"] = Invalid("status.round: Invalid value: integer: must be of type object")
            await asyncio.sleep(1200)
            assert spy.calls.count(f"update_status {JOB}") == 1

    run_virtual(main())
    assert stored(store) == (former_status(), [])
    events = [event for event in store.list(EVENT, "space").items if event["reason"] == "NeedsMigration"]
    assert [(event["type"], event.get("count")) for event in events] == [("Warning", 1)]
