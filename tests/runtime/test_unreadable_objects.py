"""What a tenant writes may be unreadable: it costs the tenant's own job, and no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.runtime.fakes import job
from tests.runtime.test_reconcile import conditions, nothing, operating
from trainmaster_operator.cluster.port import JOB
from trainmaster_operator.runtime.cache import cache_records
from trainmaster_operator.runtime.cache.cache_records import job_record
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.job_pass.error_conditions import set_reconcile_error
from trainmaster_operator.runtime.virtual_clock import run_virtual


def test_an_error_of_the_parser_is_told_by_its_job_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = cache_records._parsed

    def fails(obj: dict[str, Any], known: Any) -> Any:
        if obj["metadata"]["name"] == "bad":
            raise KeyError("a field that nobody thought of")
        return parse(obj, known)

    monkeypatch.setattr(cache_records, "_parsed", fails)

    async def main() -> None:
        async with operating(nothing, jobs=("bad", "good")) as (store, _, operator, running):
            await asyncio.sleep(5)
            assert not running.done()
            assert operator.jobs.get(JobKey("space", "good")).job is not None
            told = conditions(store, "bad")["ReconcileError"]
            assert "KeyError: 'a field that nobody thought of'" in told["message"]
            assert conditions(store, "good") == {}
            store.create(JOB, job("later"))
            await asyncio.sleep(1)
            assert operator.jobs.get(JobKey("space", "later")) is not None

    run_virtual(main())


@pytest.mark.parametrize("variables", [5, True, "A=1", {"A": "1"}, ["A=1"]])
@pytest.mark.parametrize("framework", ["PyTorch", "Trainmaster"])
def test_variables_of_another_form_are_told_in_words(framework: str, variables: Any) -> None:
    made = job(framework=framework)
    container: dict[str, Any] = {"name": "main", "env": variables}
    if framework != "Trainmaster":
        del made["spec"]["training"]
        container["command"] = ["python", "train.py"]
    made["spec"]["workers"]["template"] = {"spec": {"containers": [container]}}
    made["metadata"] |= {"uid": "1", "resourceVersion": "1"}
    record = job_record(made, None)
    assert record.job is None
    assert "containers[0].env: a list of maps with name and value is expected" in record.problem


def test_an_error_can_be_reported_on_a_job_that_is_full_of_conditions_of_other_programs() -> None:
    others = [{"type": f"example.com/{n}", "lastTransitionTime": f"2026-01-01T00:00:{n:02}Z"} for n in range(32)]
    status = set_reconcile_error(job() | {"status": {"conditions": others}}, "Invalid", "it can't be read", 0.0)
    assert status is not None
    assert [one["type"] for one in status["conditions"][-2:]] == ["example.com/31", "ReconcileError"]
    assert len(status["conditions"]) == 32
