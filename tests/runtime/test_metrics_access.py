"""Who may read metrics: what the API server says of a token, for how long that holds, and what a flood costs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from trainmaster_operator.cluster.port import Scraper, Unavailable
from trainmaster_operator.control.fleet import Refused
from trainmaster_operator.runtime.observability.metrics_access import (
    AWAY_S,
    HOLDS_S,
    MOST_KNOWN,
    UNKNOWN_REVIEWS,
    MetricsAccess,
)
from trainmaster_operator.runtime.virtual_clock import VirtualClock, run_virtual

GOOD = Scraper("system:serviceaccount:monitoring:prometheus", True)
OTHER = Scraper("system:serviceaccount:default:default", False)


class Server:
    """An API server that knows two tokens."""

    def __init__(self) -> None:
        self.knows = {"good": GOOD, "other": OTHER}
        self.asked: list[str] = []
        self.away = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def review_scraper(self, token: str, path: str) -> Scraper | None:
        assert path == "/metrics"
        self.asked.append(token)
        await self.answers.wait()
        if self.away:
            raise Unavailable("the API server is away")
        return self.knows.get(token)


def run(test: Callable[[Server, MetricsAccess, VirtualClock], Awaitable[None]]) -> None:
    async def inside() -> None:
        clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]
        server = Server()
        await test(server, MetricsAccess(server, clock), clock)

    run_virtual(inside())


async def refusal(access: MetricsAccess, header: str) -> tuple[int, str]:
    with pytest.raises(Refused) as refused:
        await access.check(header)
    return refused.value.status, str(refused.value)


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer  ", "Basic dXNlcjpwYXNz", "good"])
def test_without_a_bearer_token_nobody_is_asked(header: str) -> None:
    async def test(server: Server, access: MetricsAccess, clock: VirtualClock) -> None:
        status, words = await refusal(access, header)
        assert (status, words[:25]) == (401, "a bearer token is missing")
        assert server.asked == []

    run(test)


@pytest.mark.parametrize(
    ("token", "status", "words"),
    [
        ("invented", 401, "the API server does not recognise this token"),
        ("töken", 401, "the API server does not recognise this token"),
        ("a\nb", 401, "the API server does not recognise this token"),
        ("other", 403, "system:serviceaccount:default:default may not get /metrics"),
    ],
)
def test_a_token_without_the_right_gets_a_sentence(token: str, status: int, words: str) -> None:
    async def test(server: Server, access: MetricsAccess, clock: VirtualClock) -> None:
        found, said = await refusal(access, f"Bearer {token}")
        assert found == status
        assert said.startswith(words)

    run(test)


def test_an_answer_holds_for_a_minute_whatever_it_is() -> None:
    async def test(server: Server, access: MetricsAccess, clock: VirtualClock) -> None:
        for _ in range(3):
            await access.check("Bearer good")
            await access.check("bearer good ")
            await refusal(access, "Bearer other")
            await refusal(access, "Bearer invented")
        assert sorted(server.asked) == ["good", "invented", "other"]
        server.knows.clear()
        clock.advance(HOLDS_S - 1)
        await access.check("Bearer good")
        clock.advance(1)
        assert (await refusal(access, "Bearer good"))[0] == 401

    run(test)


def test_scrapes_that_come_together_ask_once() -> None:
    async def test(server: Server, access: MetricsAccess, clock: VirtualClock) -> None:
        server.answers.clear()
        scrapes = [asyncio.create_task(access.check("Bearer good")) for _ in range(5)]
        await asyncio.sleep(0.1)
        server.answers.set()
        await asyncio.gather(*scrapes)
        assert server.asked == ["good"]

    run(test)


def test_a_scraper_that_gives_up_does_not_take_the_answer_from_another() -> None:
    async def test(server: Server, access: MetricsAccess, clock: VirtualClock) -> None:
        server.answers.clear()
        first, second = (asyncio.create_task(access.check("Bearer good")) for _ in range(2))
        await asyncio.sleep(0.1)
        first.cancel()
        server.answers.set()
        await second
        assert server.asked == ["good"]

    run(test)


def test_while_the_api_server_is_away_those_who_were_allowed_stay_allowed_for_a_while() -> None:
    async def test(server: Server, access: MetricsAccess, clock: VirtualClock) -> None:
        await access.check("Bearer good")
        await refusal(access, "Bearer other")
        server.away = True
        clock.advance(AWAY_S - 1)
        await access.check("Bearer good")
        assert (await refusal(access, "Bearer other"))[0] == 503
        assert (await refusal(access, "Bearer new"))[0] == 503
        clock.advance(2)
        assert (await refusal(access, "Bearer good"))[0] == 503
        server.away = False
        await access.check("Bearer good")

    run(test)


def test_a_flood_of_invented_tokens_is_bounded_and_keeps_no_allowed_scraper_out() -> None:
    async def test(server: Server, access: MetricsAccess, clock: VirtualClock) -> None:
        await access.check("Bearer good")
        clock.advance(HOLDS_S)
        statuses = [(await refusal(access, f"Bearer invented-{number}"))[0] for number in range(200)]
        assert statuses.count(401) == UNKNOWN_REVIEWS.burst
        assert set(statuses) == {401, 429}
        await access.check("Bearer good")

    run(test)


def test_what_is_kept_is_bounded_and_those_who_are_allowed_are_kept() -> None:
    async def test(server: Server, access: MetricsAccess, clock: VirtualClock) -> None:
        await access.check("Bearer good")
        for number in range(MOST_KNOWN + 50):
            clock.advance(0.2)
            await refusal(access, f"Bearer invented-{number}")
        assert len(access._answers) == MOST_KNOWN
        server.away = True
        await access.check("Bearer good")  # from memory

    run(test)


def test_no_token_is_kept() -> None:
    async def test(server: Server, access: MetricsAccess, clock: VirtualClock) -> None:
        await access.check("Bearer good")
        assert all(b"good" not in digest for digest in access._answers)
        assert not access._asking

    run(test)
