"""Lists and watches over HTTP: pages, chunks, errors in the stream, silence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.examples import pod
from tests.cluster.fake_api import (
    Answer,
    FakeApi,
    answers,
    as_json,
    broken,
    fake_api,
    never,
    page,
    status,
    streams,
    told,
)
from trainmaster_operator.cluster import kubernetes_watch
from trainmaster_operator.cluster.line_splitter import LineSplitter
from trainmaster_operator.cluster.port import BOOKMARK, POD, ApiError, Forbidden, Gone, Object, Unavailable, WatchEvent


def run(answer: Answer, test: Callable[[FakeApi], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with fake_api(answer) as api:
            await test(api)

    asyncio.run(inside())


def stored(name: str, version: str = "5", namespace: str = "s") -> Object:
    obj = pod(namespace, name)
    obj["metadata"] |= {"resourceVersion": version, "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]}
    return obj


def slim(obj: Object) -> Object:
    return {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key != "managedFields"}}


async def seen(api: FakeApi, since: str = "1") -> tuple[list[WatchEvent], ApiError | None]:
    """What a watch says, and how it ends: with an error, or None."""
    events = []
    try:
        async for event in api.cluster.watch(POD, since, "s"):
            events.append(event)
    except ApiError as error:
        return events, error
    return events, None


# -- lists


def test_a_list_comes_in_pages_and_is_ordered_by_namespace_and_name() -> None:
    pages = [
        page(POD, [stored("a", namespace="a-b"), stored("b", namespace="a-b")], rest="one"),
        page(POD, [stored("a", namespace="a")], rest="two"),
        page(POD, [stored("c", namespace="a")]),
    ]

    async def test(api: FakeApi) -> None:
        listing = await api.cluster.list(POD, labels={"k": "x", "l": None, "m": ""})
        assert listing.resource_version == "7"
        wanted = [("a", "a"), ("a", "c"), ("a-b", "a"), ("a-b", "b")]
        assert listing.items == [slim(stored(name, namespace=namespace)) for namespace, name in wanted]
        assert [s.path for s in api.seen] == ["/api/v1/pods"] * 3
        assert [s.query.get("continue") for s in api.seen] == [None, "one", "two"]
        assert {s.query["limit"] for s in api.seen} == {"500"}
        assert {s.query["labelSelector"] for s in api.seen} == {"k=x,l,m="}

    run(answers(*pages), test)


def test_an_empty_list_may_be_null() -> None:
    async def test(api: FakeApi) -> None:
        assert (await api.cluster.list(POD, "s")).items == []

    run(answers(as_json({"metadata": {"resourceVersion": "1"}, "items": None})), test)


def test_pages_that_expire_half_way_are_asked_for_again_from_the_start() -> None:
    expired = as_json(status(410, "Expired", "The provided continue parameter is too old"), 410)
    pages = [
        page(POD, [stored("gone-by-now")], rest="one"),
        expired,
        page(POD, [stored("a", "8")], version="9", rest="one"),
        page(POD, [stored("b", "9")], version="9"),
    ]

    async def test(api: FakeApi) -> None:
        listing = await api.cluster.list(POD, "s")
        assert (listing.items, listing.resource_version) == ([slim(stored("a", "8")), slim(stored("b", "9"))], "9")
        assert [s.query.get("continue") for s in api.seen] == [None, "one", None, "one"]

    run(answers(*pages), test)


def test_a_list_whose_pages_always_expire_is_asked_for_as_a_whole() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if "continue" in request.query:
            return as_json(status(410, "Expired", "too old"), 410)
        return page(POD, [stored("a")], rest="one" if "limit" in request.query else "")

    async def test(api: FakeApi) -> None:
        assert (await api.cluster.list(POD, "s")).items == [slim(stored("a"))]
        assert len(api.seen) == 5

    run(answer, test)


@pytest.mark.parametrize("body", [[], {}, {"metadata": {}, "items": [{}]}, "text", {"metadata": {}, "items": [1]}])
def test_what_is_no_list_is_no_answer(body: object) -> None:
    async def test(api: FakeApi) -> None:
        with pytest.raises(Unavailable):
            await api.cluster.list(POD, "s")

    run(answers(as_json(body)), test)


# -- watches


def test_a_watch_reads_events_however_they_are_cut_into_chunks() -> None:
    first, second = stored("a"), stored("b", "6")
    first["metadata"]["annotations"] = {"text": "ü" * 3000}
    text = told("ADDED", first) + told("MODIFIED", second) + told("DELETED", stored("a", "7"))
    cut = [text[at : at + 700] for at in range(0, len(text), 700)]

    async def test(api: FakeApi) -> None:
        events, error = await seen(api, "4")
        assert error is None
        assert [(e.type, e.object) for e in events] == [
            ("ADDED", slim(first)),
            ("MODIFIED", slim(second)),
            ("DELETED", slim(stored("a", "7"))),
        ]
        (request,) = api.seen
        assert request.path == "/api/v1/namespaces/s/pods"
        assert (request.query["watch"], request.query["resourceVersion"]) == ("true", "4")
        assert request.query["allowWatchBookmarks"] == "true"
        assert 300 <= int(request.query["timeoutSeconds"]) <= 375

    run(streams(*cut), test)


def test_a_bookmark_is_told_with_its_version() -> None:
    bookmark = {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "12", "creationTimestamp": None}}

    async def test(api: FakeApi) -> None:
        events, error = await seen(api)
        assert error is None
        assert [(e.type, e.object["metadata"]["resourceVersion"]) for e in events] == [(BOOKMARK, "12")]

    run(streams(told("BOOKMARK", bookmark)), test)


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [(410, "Expired", Gone), (410, "Gone", Gone), (500, "InternalError", Unavailable), (403, "Forbidden", Unavailable)],
)
def test_an_error_in_the_stream_ends_it_after_what_came_before(code: int, reason: str, error: type[ApiError]) -> None:
    async def test(api: FakeApi) -> None:
        events, ended = await seen(api)
        assert [e.object["metadata"]["name"] for e in events] == ["a"]
        assert (type(ended), str(ended)) == (error, "too old resource version: 1 (9)")

    told_error = told("ERROR", status(code, reason, "too old resource version: 1 (9)"))
    run(streams(told("ADDED", stored("a")), told_error), test)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (as_json(status(410, "Expired", "too old"), 410), Gone),
        (as_json(status(403, "Forbidden", "no"), 403), Forbidden),
        (web.Response(status=502, text="bad gateway"), Unavailable),
    ],
)
def test_a_watch_that_is_refused_never_begins(answer: web.Response, error: type[ApiError]) -> None:
    async def test(api: FakeApi) -> None:
        events, ended = await seen(api)
        assert (events, type(ended)) == ([], error)

    run(answers(answer), test)


async def _break(request: web.BaseRequest) -> None:
    broken(request)


async def _end(request: web.BaseRequest) -> None:
    pass


@pytest.mark.parametrize("end", [_break, _end])
def test_a_stream_that_ends_in_the_middle_of_an_event_is_unavailable(
    end: Callable[[web.BaseRequest], Awaitable[None]],
) -> None:
    async def test(api: FakeApi) -> None:
        stream = api.cluster.watch(POD, "1", "s")
        assert (await anext(stream)).object["metadata"]["name"] == "a"
        proceed.set()
        with pytest.raises(Unavailable):
            await anext(stream)

    async def then(request: web.BaseRequest) -> None:
        await proceed.wait()
        await end(request)

    proceed = asyncio.Event()
    run(streams(told("ADDED", stored("a")), told("ADDED", stored("b"))[:50], then=then), test)


@pytest.mark.parametrize(
    "line", [b"text\n", b"[]\n", b'{"type": "ADDED"}\n', b'{"type": "ADDED", "object": 1}\n', b"\n"]
)
def test_a_line_that_is_no_event_is_unavailable(line: bytes) -> None:
    async def test(api: FakeApi) -> None:
        events, ended = await seen(api)
        assert (events, type(ended)) == ([], Unavailable)

    run(streams(line), test)


def test_a_watch_that_says_nothing_for_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_watch, "SILENCE_S", 0.05)

    async def test(api: FakeApi) -> None:
        events, ended = await seen(api)
        assert (events, type(ended)) == ([], Unavailable)

    run(streams(b"", then=never), test)


def test_a_watch_that_the_server_forgets_to_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_watch, "WATCH_S", 0.04)
    monkeypatch.setattr(kubernetes_watch, "WATCH_GRACE_S", 0.01)

    async def test(api: FakeApi) -> None:
        events, ended = await seen(api)
        assert (events, type(ended)) == ([], Unavailable)

    run(streams(b"", then=never), test)


def test_a_watcher_that_leaves_closes_its_connection() -> None:
    async def test(api: FakeApi) -> None:
        stream = api.cluster.watch(POD, "1", "s")
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        await asyncio.wait_for(left.wait(), 30)

    async def then(request: web.BaseRequest) -> None:
        try:
            await never(request)
        finally:
            left.set()

    left = asyncio.Event()
    run(streams(told("ADDED", stored("a")), then=then), test)


@given(st.lists(st.binary(max_size=8).map(lambda b: b.replace(b"\x00", b"\n"))))
def test_lines_do_not_depend_on_the_chunks(chunks: list[bytes]) -> None:
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    *whole, rest = b"".join(chunks).split(b"\n")
    assert lines == whole
    assert splitter.unfinished == bool(rest)
