"""Metrics over TLS: what scrapers get, and what everybody else gets."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
from collections.abc import Awaitable, Callable

import aiohttp

from trainmaster_operator.cluster.port import Scraper
from trainmaster_operator.control import certificates
from trainmaster_operator.control.ssl_context import ServerTls
from trainmaster_operator.runtime.clock import RealClock
from trainmaster_operator.runtime.observability.metrics_access import MetricsAccess
from trainmaster_operator.runtime.observability.metrics_server import MetricsServer

TEXT = b"trainmaster_jobs 1\n"
Get = Callable[..., Awaitable[tuple[int, str, dict[str, str]]]]


class Server:
    async def review_scraper(self, token: str, path: str) -> Scraper | None:
        return Scraper(token, token == "good") if token != "invented" else None


def run(test: Callable[[Get], Awaitable[None]], render: Callable[[], bytes] = lambda: TEXT) -> None:
    async def collect() -> bytes:
        return render()

    async def inside() -> None:
        clock, tls = RealClock(), ServerTls()
        authority = certificates.new_authority(clock.now())
        pair = certificates.issue(authority, ["operator.test"], clock.now())
        tls.renew(pair.certificate, pair.key)
        server = MetricsServer(collect, MetricsAccess(Server(), clock), tls.context)
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        await server.start(listening)
        trusts = ssl.create_default_context(cadata=authority.certificate.decode())

        async def get(token: str, path: str = "/metrics", method: str = "GET", **headers: str):  # type: ignore[no-untyped-def]
            if token:
                headers["Authorization"] = f"Bearer {token}"
            url = f"https://127.0.0.1:{port}{path}"
            async with (
                aiohttp.ClientSession(auto_decompress=False) as session,
                session.request(method, url, headers=headers, ssl=trusts, server_hostname="operator.test") as answer,
            ):
                body = await answer.read()
                body = gzip.decompress(body) if answer.headers.get("Content-Encoding") == "gzip" else body
                return answer.status, body.decode(), dict(answer.headers)

        try:
            await test(get)
        finally:
            await server.stop()

    asyncio.run(inside())


def test_only_accounts_with_the_right_to_read_metrics_get_them() -> None:
    async def test(get: Get) -> None:
        status, text, headers = await get("good")
        assert (status, text) == (200, TEXT.decode())
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        status, text, headers = await get("")
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "trainmaster-metrics-reader" in text
        assert (await get("invented"))[0] == 401
        assert (await get("somebody"))[0] == 403

    run(test)


def test_there_is_nothing_else_to_get() -> None:
    async def test(get: Get) -> None:
        assert (await get("good", "/v1/join"))[:2] == (404, "there is nothing here but /metrics\n")
        assert (await get("", "/livez"))[0] == 404
        assert (await get("good", method="POST"))[:2] == (405, "GET is expected\n")

    run(test)


def test_much_text_is_compressed_for_those_who_can_read_it() -> None:
    much = TEXT * 10_000

    async def test(get: Get) -> None:
        for accepted, encoding in (("gzip, deflate", "gzip"), ("identity", None)):
            status, text, headers = await get("good", **{"Accept-Encoding": accepted})
            assert (status, text, headers.get("Content-Encoding")) == (200, much.decode(), encoding)

    run(test, lambda: much)


def test_metrics_that_cannot_be_written_are_an_answer_too() -> None:
    def broken() -> bytes:
        raise KeyError("x")

    async def test(get: Get) -> None:
        assert (await get("good"))[:2] == (500, "KeyError in the operator: its log says more\n")

    run(test, broken)
