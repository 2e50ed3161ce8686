"""A CustomResourceDefinition of another version than the operator is told, with the fields that differ."""

from __future__ import annotations

import asyncio
import copy
import logging
from typing import Any

import pytest

from tests.cluster.fake_api import answers, as_json, fake_api
from trainmaster_operator.api.crd import crd_schema
from trainmaster_operator.cluster.port import JOB, Forbidden, Object
from trainmaster_operator.runtime import crd_version
from trainmaster_operator.runtime.crd_version import Difference, compare
from trainmaster_operator.runtime.observability.operator_metrics import Metrics
from trainmaster_operator.runtime.virtual_clock import run_virtual

NAMED = {"x-kubernetes-group-version-kind": [{"group": "trainmaster.dev", "version": "v1alpha1", "kind": JOB}]}
OPENAPI = "/openapi/v3/apis/trainmaster.dev/v1alpha1"


def published(change: Any = lambda spec: None) -> Object:
    """What an API server publishes of our definition, with a change of its spec."""
    schema = copy.deepcopy(crd_schema.job_schema())
    change(schema["properties"]["spec"]["properties"])
    schema["properties"]["metadata"] = {"allOf": [{"$ref": "#/components/schemas/ObjectMeta"}]}
    return {**schema, **NAMED}


def older(spec: Object) -> None:
    del spec["recovery"]["properties"]["nodes"]
    del spec["suspend"]


def newer(spec: Object) -> None:
    spec["teleport"] = {"type": "object", "properties": {"to": {"type": "string"}}}
    spec["recovery"]["properties"]["rules"]["items"]["properties"]["mood"] = {"type": "string"}


class Server:
    def __init__(self, answer: Object | Exception | None) -> None:
        self.answer = answer

    async def published_schema(self, kind: str) -> Object | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def report(answer: Object | Exception | None) -> tuple[Difference | None, Metrics]:
    metrics = Metrics()
    return asyncio.run(crd_version.report(Server(answer), metrics)), metrics


def test_the_definition_of_this_operator_is_no_difference(caplog: pytest.LogCaptureFixture) -> None:
    found, metrics = report(published())
    assert found == Difference()
    assert caplog.messages == []
    assert b"trainmaster_crd_fields_missing 0.0" in metrics.render(0.0)


def test_an_older_definition_is_told_with_the_outermost_fields_that_it_lacks(caplog: pytest.LogCaptureFixture) -> None:
    found, metrics = report(published(older))
    assert found == Difference(missing=("spec.recovery.nodes", "spec.suspend"))
    (message,) = caplog.messages
    assert "is older than this operator: it lacks spec.recovery.nodes, spec.suspend, and" in message
    assert "upgrade it with the chart" in message
    # Without this option kubectl refuses to change a definition that Helm has written.
    assert "kubectl apply --server-side --force-conflicts -f charts/trainmaster/files/crds" in message
    assert b"trainmaster_crd_fields_missing 2.0" in metrics.render(0.0)


def test_a_newer_definition_is_told_with_the_fields_that_are_not_obeyed(caplog: pytest.LogCaptureFixture) -> None:
    found, metrics = report(published(newer))
    assert found == Difference(unknown=("spec.recovery.rules[].mood", "spec.teleport"))
    (message,) = caplog.messages
    assert "is newer than this operator, which does not obey spec.recovery.rules[].mood, spec.teleport; " in message
    assert b"trainmaster_crd_fields_unknown 2.0" in metrics.render(0.0)


def test_the_metrics_follow_an_upgrade_of_the_definition_and_a_difference_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        server, metrics = Server(published(older)), Metrics()
        following = asyncio.create_task(crd_version.report_repeatedly(server, metrics))
        await asyncio.sleep(2.5 * crd_version.COMPARE_AGAIN_S)
        server.answer = Forbidden("not for you")
        await asyncio.sleep(crd_version.COMPARE_AGAIN_S)
        assert b"trainmaster_crd_fields_missing 2.0" in metrics.render(0.0), "a refusal tells nothing new"
        server.answer = published()
        await asyncio.sleep(crd_version.COMPARE_AGAIN_S)
        assert b"trainmaster_crd_fields_missing 0.0" in metrics.render(0.0)
        following.cancel()

    run_virtual(test())
    (message,) = caplog.messages
    assert "is older than this operator" in message


def test_the_schema_of_this_operator_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make it stops the event loop that all jobs share for 0.1 s."""
    there, make = published(), crd_schema.job_schema
    made: list[int] = []

    def counting() -> Object:
        made.append(1)
        return make()

    monkeypatch.setattr(crd_schema, "job_schema", counting)
    crd_version._own_fields.cache_clear()
    for _ in range(3):
        assert compare(there) == Difference()
    assert len(made) == 1


def test_many_fields_are_counted_after_the_first_few() -> None:
    (sentence,) = Difference(missing=tuple(f"spec.f{n}" for n in range(9))).sentences()
    assert "it lacks spec.f0, spec.f1, spec.f2, spec.f3, spec.f4 and 4 more, and" in sentence


@pytest.mark.parametrize("answer", [None, Forbidden("not for you")])
def test_a_server_that_does_not_say_changes_nothing(answer: Exception | None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found, _ = report(answer)
    assert found is None
    assert caplog.messages == []


def test_the_schema_is_found_in_the_openapi_document_of_its_group() -> None:
    schemas = {"dev.trainmaster.JobList": {"type": "object"}, "dev.trainmaster.Job": published()}

    async def test() -> None:
        given = [{"components": {"schemas": schemas}}, {"components": {"schemas": {}}}]
        async with fake_api(answers(*map(as_json, given))) as api:
            found = await api.cluster.published_schema(JOB)
            assert found is not None
            assert compare(found) == Difference()
            assert await api.cluster.published_schema(JOB) is None
            assert [seen.path for seen in api.seen] == [OPENAPI, OPENAPI]

    asyncio.run(test())
