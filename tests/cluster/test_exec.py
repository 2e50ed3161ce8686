"""A command in a container, against a server that speaks as an API server does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from tests.cluster.fake_api import fake_api
from trainmaster_operator.cluster.kubernetes_exec import PROTOCOL, Done, execute
from trainmaster_operator.cluster.port import Forbidden, Unavailable

SUCCESS = {"metadata": {}, "status": "Success"}
FAILED = {
    "status": "Failure",
    "reason": "NonZeroExitCode",
    "details": {"causes": [{"reason": "ExitCode", "message": "3"}]},
}


def speaks(*messages: bytes) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        for message in messages:
            await socket.send_bytes(message)
        await socket.close()
        return socket

    return answer


def status(told: Any) -> bytes:
    return b"\x03" + json.dumps(told).encode()


def run(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> tuple[Done, str, list[str]]:
    async def main() -> tuple[Done, str, list[str]]:
        async with fake_api(answer) as api:
            done = await execute(api.cluster.connection, "team", "pod-0", "trainer", ["python3", "x", "a b&c"])
            (seen,) = api.seen
            return done, seen.path, list(seen.query.values())

    return asyncio.run(main())


def test_what_a_command_says_and_how_it_ends() -> None:
    done, path, query = run(speaks(b"\x01", b"\x01out ", b"\x02err", b"\x01more", status(SUCCESS)))
    assert done == Done(0, "out more", "err")
    assert path == "/api/v1/namespaces/team/pods/pod-0/exec"
    assert "trainer" in query


def test_a_command_that_fails_tells_its_code() -> None:
    assert run(speaks(b"\x02no", status(FAILED)))[0] == Done(3, "", "no")


def test_words_of_the_command_arrive_as_they_are() -> None:
    heard: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        heard.extend(request.query.getall("command"))
        return await speaks(status(SUCCESS))(request)

    run(answer)
    assert heard == ["python3", "x", "a b&c"]


def test_a_conversation_that_breaks_off_is_no_success() -> None:
    with pytest.raises(Unavailable, match="broke off"):
        run(speaks(b"\x01half"))


def test_a_command_that_cannot_start_is_told_in_the_servers_words() -> None:
    with pytest.raises(Unavailable, match="no such file"):
        run(speaks(status({"status": "Failure", "message": "exec: no such file"})))


def test_who_may_not_enter_pods_is_told_so() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"kind": "Status", "reason": "Forbidden", "message": "no"}, status=403)

    with pytest.raises(Forbidden):
        run(answer)


def test_output_can_be_taken_piece_by_piece() -> None:
    pieces: list[bytes] = []

    async def main() -> Done:
        async with fake_api(speaks(b"\x01\xff\x00", b"\x02err", b"\x01more", status(SUCCESS))) as api:
            return await execute(api.cluster.connection, "team", "pod-0", "trainer", ["x"], receive=pieces.append)

    assert asyncio.run(main()) == Done(0, "", "err")
    assert pieces == [b"\xff\x00", b"more"]


@pytest.mark.parametrize("channel", [b"\x01", b"\x02", b"\x03"])
def test_a_command_that_writes_without_end_is_left(channel: bytes) -> None:
    with pytest.raises(Unavailable, match="wrote more than 1 MiB"):
        run(speaks(*[channel + b"x" * 100_000] * 11, status(SUCCESS)))
