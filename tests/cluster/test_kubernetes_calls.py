"""What each verb sends over HTTP, and what becomes of each way to fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio import client

from tests.cluster.examples import config_map, job, pod
from tests.cluster.fake_api import Answer, FakeApi, answers, as_json, broken, fake_api, never, status
from trainmaster_operator.cluster import kubernetes_connection
from trainmaster_operator.cluster.kubernetes import KubernetesCluster
from trainmaster_operator.cluster.kubernetes_connection import Connection
from trainmaster_operator.cluster.kubernetes_errors import LONGEST_RETRY_AFTER_S, unanswered
from trainmaster_operator.cluster.port import (
    CONFIG_MAP,
    JOB,
    POD,
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Scraper,
    TokenReview,
    TooManyRequests,
    Unavailable,
)

JOBS = "/apis/trainmaster.dev/v1alpha1/namespaces/s/distributedtrainingjobs"


def run(answer: Answer, test: Callable[[FakeApi], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with fake_api(answer) as api:
            await test(api)

    asyncio.run(inside())


async def echo(request: web.Request) -> web.StreamResponse:
    """Answers with an object that has managed fields."""
    return as_json({"metadata": {"name": "a", "managedFields": [{"manager": "m"}]}})


# -- what is sent


def test_a_pod_is_created_strictly_so_that_no_field_is_dropped_silently() -> None:
    async def test(api: FakeApi) -> None:
        await api.cluster.create(POD, pod("s", "a"))
        await api.cluster.create(JOB, job("s", "a"))
        await api.cluster.try_create(POD, pod("s", "a"))
        strict = {"fieldValidation": "Strict"}
        assert [seen.query for seen in api.seen] == [strict, {}, {**strict, "dryRun": "All"}]
        assert {(seen.method, seen.path) for seen in api.seen[::2]} == {("POST", "/api/v1/namespaces/s/pods")}

    run(echo, test)


def test_the_verbs_of_an_object() -> None:
    made = job("s", "a")
    made["metadata"]["resourceVersion"] = "5"

    async def test(api: FakeApi) -> None:
        cluster = api.cluster
        assert await cluster.get(JOB, "s", "a") == {"metadata": {"name": "a"}}
        await cluster.create(JOB, job("s", "a"))
        await cluster.update(JOB, made)
        await cluster.update_status(JOB, made)
        await cluster.patch(JOB, "s", "a", {"metadata": {"labels": {"k": None}}})
        await cluster.patch(JOB, "s", "a", {"spec": {"suspend": True}}, "5")
        await cluster.delete(JOB, "s", "a")
        await cluster.delete(JOB, "s", "a", uid="u", grace_s=0)
        assert [(s.method, s.path, s.body) for s in api.seen] == [
            ("GET", f"{JOBS}/a", None),
            ("POST", JOBS, job("s", "a")),
            ("PUT", f"{JOBS}/a", made),
            ("PUT", f"{JOBS}/a/status", made),
            ("PATCH", f"{JOBS}/a", {"metadata": {"labels": {"k": None}}}),
            ("PATCH", f"{JOBS}/a", {"spec": {"suspend": True}, "metadata": {"resourceVersion": "5"}}),
            ("DELETE", f"{JOBS}/a", {**OPTIONS}),
            ("DELETE", f"{JOBS}/a", {**OPTIONS, "preconditions": {"uid": "u"}, "gracePeriodSeconds": 0}),
        ]
        kinds = [s.headers["Content-Type"] for s in api.seen if s.method in ("POST", "PUT", "PATCH")]
        assert kinds == ["application/json"] * 3 + ["application/merge-patch+json"] * 2
        assert {s.headers["User-Agent"] for s in api.seen} == {"trainmaster-operator"}

    run(echo, test)


OPTIONS = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}


def test_an_apply_names_its_manager_is_forced_and_leaves_the_status_out() -> None:
    async def test(api: FakeApi) -> None:
        wanted = config_map("s", "a", {"x": "1"})
        await api.cluster.apply(CONFIG_MAP, {**wanted, "status": {"phase": "x"}})
        (request,) = api.seen
        assert (request.method, request.path) == ("PATCH", "/api/v1/namespaces/s/configmaps/a")
        assert request.query == {"fieldManager": "trainmaster", "force": "true"}
        assert request.headers["Content-Type"] == "application/apply-patch+yaml"
        assert request.body == wanted

    run(echo, test)


def test_an_eviction_goes_through_the_pod() -> None:
    async def test(api: FakeApi) -> None:
        await api.cluster.evict("s", "a")
        (request,) = api.seen
        assert (request.method, request.path) == ("POST", "/api/v1/namespaces/s/pods/a/eviction")
        assert (request.body["apiVersion"], request.body["kind"]) == ("policy/v1", "Eviction")
        assert request.body["metadata"] == {"name": "a", "namespace": "s"}

    run(answers(as_json(status(201, "", ""), 201)), test)


def test_resources_change_through_the_pod_and_only_of_the_one_that_was_meant() -> None:
    async def test(api: FakeApi) -> None:
        await api.cluster.resize("s", "a", "uid-1", {"main": {"limits": {"cpu": "2"}}})
        (request,) = api.seen
        assert (request.method, request.path) == ("PATCH", "/api/v1/namespaces/s/pods/a/resize")
        assert request.body == {
            "metadata": {"uid": "uid-1"},
            "spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "2"}}}]},
        }

    run(answers(as_json(pod("s", "a"))), test)


def test_odd_names_stay_inside_their_path_and_empty_ones_are_refused_here() -> None:
    async def test(api: FakeApi) -> None:
        await api.cluster.get(POD, "s", "a/../b?c")
        assert api.seen.pop().path == "/api/v1/namespaces/s/pods/a%2F..%2Fb%3Fc"
        calls: list[Awaitable[object]] = [
            api.cluster.get(POD, "s", ""),
            api.cluster.delete(POD, "s", ".."),
            api.cluster.delete(POD, "", "a"),
            api.cluster.create(POD, {"metadata": {"name": "a"}}),
            api.cluster.apply(POD, {"metadata": {"namespace": "s"}}),
            api.cluster.update(POD, pod("s", "a")),
            api.cluster.update_status(POD, pod("s", "a")),
        ]
        for call in calls:
            with pytest.raises(Invalid):
                await call
        with pytest.raises(NotFound):
            await api.cluster.get("Node", "s", "a")
        assert api.seen == []

    run(echo, test)


# -- tokens


def reviewed(audiences: list[str] | None = None, **told: object) -> web.Response:
    user = {
        "username": "system:serviceaccount:space:default",
        "uid": "u",
        "extra": {
            "authentication.kubernetes.io/pod-name": ["a"],
            "authentication.kubernetes.io/pod-uid": ["pod-uid"],
            "authentication.kubernetes.io/node-name": ["n"],
        },
    }
    audiences = ["trainmaster"] if audiences is None else audiences
    return as_json({"status": {"authenticated": True, "user": user, "audiences": audiences, **told}}, 201)


@pytest.mark.parametrize(
    ("answer", "review"),
    [
        (reviewed(), TokenReview("system:serviceaccount:space:default", "space", "a", "pod-uid")),
        (
            reviewed(user={"username": "system:serviceaccount:s:x"}),
            TokenReview("system:serviceaccount:s:x", "s", "", ""),
        ),
        (reviewed(user={"username": "somebody"}), TokenReview("somebody", "", "", "")),
        (reviewed(authenticated=False, error="token has expired"), None),
        (reviewed(audiences=["other"]), None),
        (reviewed(audiences=[]), None),  # a server that knows no audiences has checked it for itself only
        (as_json({"status": {"authenticated": "true", "audiences": ["trainmaster"]}}), None),
    ],
)
def test_a_token_is_whose_the_server_says_it_is(answer: web.Response, review: TokenReview | None) -> None:
    async def test(api: FakeApi) -> None:
        assert await api.cluster.review_token("secret", "trainmaster") == review
        (request,) = api.seen
        assert (request.method, request.path) == ("POST", "/apis/authentication.k8s.io/v1/tokenreviews")
        assert request.body["spec"] == {"token": "secret", "audiences": ["trainmaster"]}

    run(answers(answer), test)


@pytest.mark.parametrize(
    "answer",
    [
        as_json(status(403, "Forbidden", "tokenreviews is forbidden"), 403),
        as_json(status(401, "Unauthorized", "Unauthorized"), 401),
        as_json(status(429, "TooManyRequests", "later"), 429),
        as_json(status(500, "InternalError", "etcd"), 500),
        as_json([]),
        as_json({"metadata": {}}),
        ConnectionResetError(),
    ],
)
def test_a_server_that_cannot_tell_whose_a_token_is_is_unavailable(answer: web.Response | Exception) -> None:
    async def test(api: FakeApi) -> None:
        with pytest.raises(Unavailable):
            await api.cluster.review_token("secret", "trainmaster")

    run(answers(answer), test)


async def reviews(request: web.Request) -> web.StreamResponse:
    """Knows one scraper by its token; only groups decide whether it may read."""
    spec = (await request.json())["spec"]
    if "token" in spec:
        user = {"username": "prometheus", "groups": ["scrapers"], "uid": "u", "extra": {"k": ["v"]}}
        known = spec["token"] == "secret"
        return as_json({"status": {"authenticated": known, **({"user": user} if known else {})}}, 201)
    return as_json({"status": {"allowed": spec["groups"] == ["scrapers"]}}, 201)


def test_a_scraper_is_asked_about_with_all_that_its_token_says() -> None:
    async def test(api: FakeApi) -> None:
        assert await api.cluster.review_scraper("secret", "/metrics") == Scraper("prometheus", True)
        first, second = api.seen
        assert (first.path, first.body["spec"]) == ("/apis/authentication.k8s.io/v1/tokenreviews", {"token": "secret"})
        assert second.path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        assert second.body["spec"] == {
            "user": "prometheus",
            "groups": ["scrapers"],
            "uid": "u",
            "extra": {"k": ["v"]},
            "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
        }

    run(reviews, test)


def test_a_token_that_is_not_recognised_is_nobodys_and_asks_for_no_access() -> None:
    async def test(api: FakeApi) -> None:
        assert await api.cluster.review_scraper("invented", "/metrics") is None
        assert await api.cluster.review_scraper("", "/metrics") is None
        assert len(api.seen) == 1

    run(reviews, test)


def test_a_server_that_cannot_tell_who_may_read_is_unavailable() -> None:
    async def test(api: FakeApi) -> None:
        with pytest.raises(Unavailable):
            await api.cluster.review_scraper("secret", "/metrics")

    run(answers(as_json(status(403, "Forbidden", "subjectaccessreviews is forbidden"), 403)), test)


# -- what goes wrong


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Unavailable),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", ApiError),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (413, "RequestEntityTooLarge", Invalid),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (504, "Timeout", Unavailable),
        (409, "SomethingNew", Conflict),
        (418, "SomethingNew", ApiError),
        (599, "", Unavailable),
    ],
)
def test_a_refusal_is_told_in_the_server_s_words(code: int, reason: str, error: type[ApiError]) -> None:
    async def test(api: FakeApi) -> None:
        with pytest.raises(ApiError) as caught:
            await api.cluster.create(POD, pod("s", "a"))
        assert (type(caught.value), str(caught.value)) == (error, 'pods "a" is not wanted here')

    run(answers(as_json(status(code, reason, 'pods "a" is not wanted here'), code)), test)


@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [
        (401, "Unauthorized", "Unauthorized"),
        (403, "Forbidden", ""),
        (429, "TooManyRequests", ""),
        (500, "InternalError", "InternalError"),
        (500, "ServerTimeout", "ServerTimeout"),
        (503, "ServiceUnavailable", "ServiceUnavailable"),
        (504, "Timeout", "Timeout"),
        (504, "", "Timeout"),
        (599, "SomethingNew", ""),
    ],
)
def test_a_server_in_trouble_is_told_from_another_one_by_its_own_reason(code: int, reason: str, said: str) -> None:
    async def test(api: FakeApi) -> None:
        with pytest.raises(ApiError) as caught:
            await api.cluster.create(POD, pod("s", "a"))
        assert caught.value.said == said

    run(answers(as_json(status(code, reason, "no"), code)), test)


def test_a_call_that_nobody_answers_says_so_and_one_that_is_late_says_that() -> None:
    async def test(api: FakeApi) -> None:
        with pytest.raises(Unavailable) as caught:
            await api.cluster.create(POD, pod("s", "a"))
        assert caught.value.said == "NoAnswer"

    run(answers(ConnectionError()), test)
    assert unanswered("GET /x", aiohttp.ServerTimeoutError()).said == "Timeout"
    assert str(unanswered("GET /x", TimeoutError())) == "GET /x: TimeoutError"


def test_disruption_budgets_are_listed_for_a_namespace() -> None:
    async def test(api: FakeApi) -> None:
        assert await api.cluster.disruption_budgets("team-a") == [{"metadata": {"name": "careful"}}]
        assert api.seen[0].path == "/apis/policy/v1/namespaces/team-a/poddisruptionbudgets"

    run(answers(as_json({"kind": "PodDisruptionBudgetList", "items": [{"metadata": {"name": "careful"}}]})), test)


@pytest.mark.parametrize(
    ("headers", "details", "wait_s"),
    [
        ({"Retry-After": "7"}, {}, 7.0),
        ({}, {"retryAfterSeconds": 10}, 10.0),
        ({}, {}, 0.0),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, {}, 0.0),
        ({"Retry-After": "-1"}, {}, 0.0),
    ],
)
def test_a_server_that_is_busy_says_for_how_long(
    headers: dict[str, str], details: dict[str, int], wait_s: float
) -> None:
    async def test(api: FakeApi) -> None:
        with pytest.raises(TooManyRequests, match="busy") as caught:
            await api.cluster.evict("s", "a")
        assert caught.value.retry_after_s == wait_s

    run(answers(as_json(status(429, "TooManyRequests", "busy", **details), 429, **headers)), test)


def test_a_server_that_is_away_for_a_while_says_for_how_long_too() -> None:
    async def test(api: FakeApi) -> None:
        with pytest.raises(Unavailable) as caught:
            await api.cluster.get(POD, "s", "a")
        assert caught.value.retry_after_s == LONGEST_RETRY_AFTER_S

    headers = {"Retry-After": "3600"}
    run(answers(as_json(status(503, "ServiceUnavailable", "later"), 503, **headers)), test)


def test_a_busy_proxy_says_so_without_a_status() -> None:
    async def test(api: FakeApi) -> None:
        with pytest.raises(TooManyRequests, match="slow down") as caught:
            await api.cluster.get(POD, "s", "a")
        assert caught.value.retry_after_s == 3

    run(answers(web.Response(status=429, text="slow down", headers={"Retry-After": "3"})), test)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (web.Response(status=500, text="<html>upstream is sad</html>"), Unavailable),
        (web.Response(status=502, body=b"\xff\xfe"), Unavailable),
        (web.Response(status=404, text="404 page not found"), NotFound),
        (web.Response(status=200, text="<html>log in here</html>"), Unavailable),
        (web.Response(status=200, body=b'{"metadata": '), Unavailable),
        (as_json([]), Unavailable),
        (as_json({"metadata": None}), Unavailable),
        (as_json({"message": "not a Status"}, 500), Unavailable),
    ],
)
def test_an_answer_in_another_language_says_what_was_asked(answer: web.Response, error: type[ApiError]) -> None:
    async def test(api: FakeApi) -> None:
        with pytest.raises(ApiError, match="GET /api/v1/namespaces/s/pods/a") as caught:
            await api.cluster.get(POD, "s", "a")
        assert type(caught.value) is error

    run(answers(answer), test)


def test_a_call_that_takes_too_long_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_connection, "CALL_TIMEOUT_S", 0.05)

    async def answer(request: web.Request) -> web.StreamResponse:
        await never(request)
        raise AssertionError

    async def test(api: FakeApi) -> None:
        calls: list[Awaitable[object]] = [
            api.cluster.list(POD),
            api.cluster.create(POD, pod("s", "a")),
            api.cluster.delete(POD, "s", "a"),
        ]
        for call in calls:
            with pytest.raises(Unavailable, match=r"/api/v1/.*Timeout"):
                await call

    run(answer, test)


def test_nobody_there_is_unavailable() -> None:
    async def inside() -> None:
        configuration = client.Configuration(host="http://127.0.0.1:1")
        cluster = KubernetesCluster(Connection(configuration))
        for call in (cluster.list(POD), cluster.create(POD, pod("s", "a")), anext(cluster.watch(POD, "0"))):
            with pytest.raises(Unavailable, match="/api/v1"):
                await call
        await cluster.close()

    asyncio.run(inside())


def test_a_create_whose_connection_breaks_is_not_sent_twice() -> None:
    async def test(api: FakeApi) -> None:
        await api.cluster.get(POD, "s", "a")
        with pytest.raises(Unavailable):
            await api.cluster.create(POD, pod("s", "a"))
        assert [s.method for s in api.seen] == ["GET", "POST"]

    run(answers(as_json({"metadata": {}}), ConnectionResetError()), test)


def test_a_body_that_breaks_off_is_unavailable() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"metadata": ')
        broken(request)
        return response

    async def test(api: FakeApi) -> None:
        with pytest.raises(Unavailable):
            await api.cluster.create(POD, pod("s", "a"))

    run(answer, test)


def test_calls_share_a_bounded_number_of_connections() -> None:
    open_now = most = 0
    full = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        if open_now == 3:
            full.set()
        await full.wait()
        for _ in range(100):  # time for a fourth one to come in, if there can be one
            await asyncio.sleep(0)
        open_now -= 1
        return as_json({"metadata": {}})

    async def inside() -> None:
        async with fake_api(answer, connections=3) as api:
            await asyncio.gather(*(api.cluster.create(POD, pod("s", f"p{index}")) for index in range(20)))
            assert most == 3
            assert len({s.body["metadata"]["name"] for s in api.seen}) == 20

    asyncio.run(inside())


def test_every_call_is_told_with_its_code() -> None:
    told: list[tuple[str, str, int]] = []

    def calls(verb: str, kind: str, seconds: float, code: int) -> None:
        assert seconds >= 0
        told.append((verb, kind, code))

    async def inside() -> None:
        given = answers(
            as_json({"metadata": {}}, 201),
            as_json(status(409, "AlreadyExists", "there"), 409),
            ConnectionResetError(),
            as_json(status(410, "Expired", "old"), 410),
        )
        async with fake_api(given, calls=calls) as api:
            await api.cluster.create(POD, pod("s", "a"))
            for call in (
                api.cluster.create(POD, pod("s", "a")),
                api.cluster.evict("s", "a"),
                anext(api.cluster.watch(JOB, "1")),
            ):
                with pytest.raises(ApiError):
                    await call

    asyncio.run(inside())
    assert told == [("create", POD, 201), ("create", POD, 409), ("evict", POD, 0), ("watch", JOB, 410)]
