"""The HTTP shell: status codes, sentences, keep-alive, and what a broken connection does."""

import asyncio
import json
import math
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest

from trainmaster.contract.wire import (
    LEADERLESS_HEADER,
    PROTOCOL,
    Directive,
    DirectiveState,
    Identity,
    JoinRequest,
    Report,
    decode,
    encode,
)
from trainmaster_operator.control.authentication import Admission, Credential
from trainmaster_operator.control.fleet import Fleet, Refused
from trainmaster_operator.control.http_server import ControlServer, Probes, listening_socket
from trainmaster_operator.runtime.clock import RealClock

ME = Identity("job-uid", "space", "job", "worker", 0, 0, "pod-uid")
KEY = ("space", "job")
GOOD = {"Authorization": "Bearer good"}


@asynccontextmanager
async def serving(ready=True, **options):
    async def authenticate(credential, claim):
        if credential != Credential("bearer", "good"):
            raise Refused(401, "this token is nobody's")
        return Admission(await claim())

    marks: asyncio.Queue[float] = asyncio.Queue()
    fleet = Fleet(
        RealClock(), authenticate, lambda key, delay_s: marks.put_nowait(delay_s), lambda key, uid: uid == "job-uid"
    )
    fleet.publish(KEY, "job-uid", 1, [0], lambda slot: Directive(1, DirectiveState.WAIT, 1, "tag"))
    fleet.marks = marks
    server = ControlServer(fleet, Probes(lambda: ready, lambda: b"metric 1\n"), **options)
    sock = listening_socket("127.0.0.1", 0)
    await server.start(sock)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{sock.getsockname()[1]}") as session:
        yield session, fleet
    await server.stop()


async def post(session, path, body, headers=GOOD):
    async with session.post(path, data=body, headers=headers) as response:
        return response.status, await response.read()


def test_messages_are_answered_with_directives():
    async def main():
        async with serving() as (session, _):
            for path, message in (("/v1/join", JoinRequest(ME)), ("/v1/report", Report(ME, round=0))):
                status, body = await post(session, path, encode(message))
                assert status == 200
                assert decode(Directive, body).tag == "tag"

    asyncio.run(main())


def test_an_older_agent_is_answered_in_its_own_protocol():
    async def main():
        async with serving() as (session, _):
            for path, message in (("/v1/join", JoinRequest(ME)), ("/v1/report", Report(ME, round=0))):
                _, body = await post(session, path, encode(replace(message, protocol=PROTOCOL - 1)))
                assert json.loads(body)["protocol"] == PROTOCOL - 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("leader", "authorized", "leaderless_s", "status", "shown"),
    [
        ("https://10.0.0.1:8443", True, 1.25, 421, "1.250"),
        ("", True, 0.0, 503, "0.000"),
        (None, False, 3600.0, 401, "3600.000"),
        ("", True, math.inf, 503, None),  # it has never heard of a time without a leader
        (None, True, 1.25, 200, None),  # a directive needs no such words
    ],
)
def test_a_refusal_says_for_how_long_somebody_may_have_led(leader, authorized, leaderless_s, status, shown):
    async def main():
        async with (
            serving(leader=lambda: leader, leaderless_s=lambda: leaderless_s) as (session, _),
            session.post("/v1/report", data=encode(Report(ME, round=0)), headers=GOOD if authorized else {}) as got,
        ):
            assert (got.status, got.headers.get(LEADERLESS_HEADER)) == (status, shown)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (encode(Report(ME, round=0)), {}, 401, "bearer token is missing"),
        (encode(Report(ME, round=0)), {"Authorization": "Bearer bad"}, 401, "nobody's"),
        (b"{", GOOD, 400, "not JSON"),
        (b'{"round": "x"}', GOOD, 400, "Report.identity: is missing"),
        (encode(Report(ME, round=0)).replace(b'"round":0', b'"round":"x"'), GOOD, 400, "Report.round: int is expected"),
        (b" " * (2 * 1024 * 1024), GOOD, 413, "exceeded"),
    ],
)
def test_what_cannot_be_served_is_refused_in_words(body, headers, status, words):
    async def main():
        async with serving() as (session, _):
            got, answer = await post(session, "/v1/report", body, headers)
            assert got == status
            assert words in json.loads(answer)["error"]

    asyncio.run(main())


def test_people_and_probes_are_answered():
    async def main():
        async with serving() as (session, _):
            await post(session, "/v1/report", encode(Report(ME, round=0)))
            async with session.get("/v1/jobs/space/job") as response:
                assert (await response.json())["slots"][0]["slot"] == 0
            for path, expected in (
                ("/livez", 200),
                ("/readyz", 200),
                ("/metrics", 200),
                ("/v1/jobs/a/b", 404),
                ("/x", 404),
            ):
                async with session.get(path) as response:
                    assert response.status == expected, path
        async with serving(ready=False) as (session, _), session.get("/readyz") as response:
            assert response.status == 503

    asyncio.run(main())


def test_the_death_of_a_polling_agent_shows_at_once():
    async def main():
        async with serving() as (session, fleet):
            poll = asyncio.create_task(post(session, "/v1/join", encode(JoinRequest(ME, seen_tag="tag"))))
            assert await fleet.marks.get() == 0
            while not fleet._jobs[KEY].slots[0].polls:
                await asyncio.sleep(0)
            poll.cancel()
            assert await fleet.marks.get() == 0

    asyncio.run(main())


def test_a_port_in_use_is_named():
    first = listening_socket("127.0.0.1", 0)
    port = first.getsockname()[1]
    with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
        listening_socket("127.0.0.1", port)
    first.close()
