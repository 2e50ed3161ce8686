"""The agent's client against operators that answer as the test says."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from types import SimpleNamespace

import pytest

from trainmaster.agent.shell import control_client, reports_to_operator
from trainmaster.agent.shell.control_client import Access, Connection, Refused, Unreachable
from trainmaster.agent.shell.reports_to_operator import Reporter
from trainmaster.contract.wire import (
    LEADERLESS_HEADER,
    Directive,
    DirectiveState,
    ExitCode,
    Identity,
    Report,
    encode,
)
from trainmaster_operator.control.http_server import Limits

ME = Identity("job-uid", "space", "job", "worker", 0, 0, "pod-uid")
OK = encode(Directive(1, DirectiveState.WAIT, 1, "tag"))


class Operator:
    """Answers each request by `answer(authorization) -> (status, headers, body)`; None cuts the connection."""

    def __init__(self, answer):
        self.answer = answer
        self.shown = []
        self.connections = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *error):
        self._server.close()

    async def _serve(self, reader, writer):
        self.connections += 1
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.split(": ", 1) for line in lines[1:] if line)
                await reader.readexactly(int(headers["Content-Length"]))
                self.shown.append(headers.get("Authorization", ""))
                answer = self.answer(self.shown[-1])
                if answer is None:
                    return
                status, more, body = answer
                head = [f"HTTP/1.1 {status} Words", f"Content-Length: {len(body)}", *more, "", ""]
                writer.write("\r\n".join(head).encode() + body)
        except EOFError:
            pass
        finally:
            writer.close()


def leads_to(url):
    return 421, [], json.dumps({"error": "no", "leader": url}).encode()


def report(connection):
    return connection.report(Report(ME, round=1), 20.0)


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("secret\n")
    return str(path)


async def refusal(call):
    with pytest.raises(Refused) as caught:
        await call
    return caught.value


def test_a_session_is_shown_by_all_connections_until_it_is_refused(token):
    def answer(shown):
        if shown == "Bearer secret":
            return 200, [f"Trainmaster-Session: s{len(operator.shown)}"], OK
        return (200, [], OK) if shown not in refused else (401, [], b"{}")

    operator = Operator(answer)
    refused = set()

    async def main():
        async with operator:
            access = Access(operator.url, token)
            one, other = Connection(access), Connection(access)
            await report(one)
            await report(other)
            refused.add("Session s1")
            await asyncio.gather(report(one), report(other))
            await report(one)
            assert operator.shown[:2] == ["Bearer secret", "Session s1"]
            assert operator.shown[-1] == f"Session {access.session}" != "Session s1"
            assert operator.connections == 2

    asyncio.run(main())


def test_a_token_that_is_refused_is_not_shown_again_at_once_and_is_read_anew(token):
    operator = Operator(lambda shown: (200, [], OK) if shown == "Bearer rotated" else (401, [], b"{}"))

    async def main():
        async with operator:
            connection = Connection(Access(operator.url, token))
            assert (await refusal(report(connection))).status == 401
            assert len(operator.shown) == 1
            with open(token, "w") as file:
                file.write("rotated")
            await report(connection)

    asyncio.run(main())


def test_a_standby_leads_to_the_leader_and_all_connections_stay_there(token):
    async def main():
        async with (
            Operator(lambda shown: (200, [], OK)) as leader,
            Operator(lambda shown: leads_to(leader.url)) as standby,
        ):
            access = Access(standby.url, token)
            one, other = Connection(access), Connection(access)
            await report(one)
            await report(other)
            await report(one)
            assert (len(standby.shown), len(leader.shown)) == (1, 3)

    asyncio.run(main())


def test_a_leader_that_is_gone_is_looked_for_at_the_service(token):
    async def main():
        leads = [False]

        def answer(shown):
            return (200, [], OK) if leads[0] else leads_to(leader.url)

        async with Operator(answer) as service:
            async with Operator(lambda shown: (200, [], OK) if not leads[0] else None) as leader:
                access = Access(service.url, token)
                connection = Connection(access)
                await report(connection)
                leads[0] = True
            await report(connection)
            assert access.address == ("127.0.0.1", service.port)
            await report(connection)

    asyncio.run(main())


def test_operators_that_send_each_other_agents_are_no_endless_loop(token):
    async def main():
        async with (
            Operator(lambda shown: leads_to(other.url)) as one,
            Operator(lambda shown: leads_to(one.url)) as other,
        ):
            assert (await refusal(report(Connection(Access(one.url, token))))).status == 421
            assert len(one.shown) + len(other.shown) < 10

    asyncio.run(main())


@pytest.mark.parametrize(
    "leader", ["", "nowhere", "ftp://x", "https://127.0.0.1:1", 7, None, [], "http://[", "http://h:x"]
)
def test_an_address_that_cannot_be_followed_is_a_refusal(token, leader):
    async def main():
        async with Operator(lambda shown: leads_to(leader)) as standby:
            assert (await refusal(report(Connection(Access(standby.url, token))))).status == 421
            assert len(standby.shown) == 1

    asyncio.run(main())


def test_a_secure_channel_is_never_left_for_one_that_is_not():
    access = Access("https://operator:8443", "")
    assert not access.follow(b'{"leader": "http://10.0.0.1:8443"}')
    assert access.follow(b'{"leader": "https://[fd00::1]:8443"}')
    assert access.address == ("fd00::1", 8443)
    assert access.server_name == "operator"
    assert access.forget_leader()
    assert not access.forget_leader()
    assert access.address == ("operator", 8443)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("Retry-After: 7", 7),
        ("retry-after: 100000", 60),
        ("Retry-After: Wed, 21 Oct 2026 07:28:00 GMT", 0),
        ("X: 1", 0),
    ],
)
def test_an_operator_says_when_to_come_again(token, header, seconds):
    async def main():
        async with Operator(lambda shown: (429, [header], b"{}")) as operator:
            refused = await refusal(report(Connection(Access(operator.url, token))))
            assert (refused.status, refused.retry_after_s) == (429, seconds)

    asyncio.run(main())


def test_pauses_are_never_shorter_than_the_operator_asks_and_never_the_same(monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    settings = SimpleNamespace(operator_url="http://x", token_file="", ca_file="", one_machine=True)
    reporter = Reporter(SimpleNamespace(settings=settings, draining_until=None))
    monkeypatch.setattr(reports_to_operator.asyncio, "sleep", sleep)
    pauses = [asyncio.run(reporter._away(Refused(429, "", 5.0), reporter._join, 0.05)) for _ in range(20)]
    assert set(pauses) == {0.1}
    assert min(slept) >= 5
    assert max(slept) <= 7.5
    assert len(set(slept)) > 10
    slept.clear()
    asyncio.run(reporter._away(Refused(503, ""), reporter._join, 0.05))
    assert slept[0] < 0.1


def supervised(url, token=""):
    """What a reporter asks its supervisor, in an agent that has no round."""
    ended = asyncio.get_running_loop().create_future()
    return SimpleNamespace(
        settings=SimpleNamespace(operator_url=url, token_file=token, ca_file="", one_machine=True),
        uploads=SimpleNamespace(take_records=list, give_back=lambda records: None),
        exit_code=ended,
        end=ended.set_result,
        obey=lambda directive: None,
        round=None,
        directive=None,
        draining_until=None,
        events=[],
        software={},
    )


def test_a_pod_that_drains_ends_when_its_present_round_is_saved_and_not_because_an_earlier_one_was():
    async def main():
        reports = [Report(ME, round=1, saved=True), Report(ME, round=2), Report(ME, round=2, saved=True)]
        told = []

        def compose():
            if len(told) == 1:
                supervisor.draining_until = 1e9  # SIGTERM, in the round after one that was saved
            return reports[len(told)]

        async def answer(report, timeout_s):
            told.append(report.round)
            reporter.at_once()
            return Directive(1, DirectiveState.RUN, report.round, "tag")

        supervisor = supervised("http://x")
        ended = supervisor.exit_code
        reporter = Reporter(supervisor)
        reporter._compose, reporter._report = compose, SimpleNamespace(report=answer)
        reporter._joined.set()
        await reporter._keep_reporting()
        assert (told, ended.result()) == ([1, 2, 2], ExitCode.SAVED)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "headers", "renewed_at"),
    [
        (200, [], 110.0),
        (503, [f"{LEADERLESS_HEADER}: 4.5"], 105.5),  # a standby knows that nobody led 4.5 s ago, so nobody counted
        (421, [f"{LEADERLESS_HEADER}: 0.0"], 110.0),
        (503, [], -math.inf),  # whoever can't say so may be cut off together with this agent
        (421, [], -math.inf),
        (503, [f"{LEADERLESS_HEADER}: nan"], -math.inf),
        (503, [f"{LEADERLESS_HEADER}: -7"], -math.inf),
        (503, [f"{LEADERLESS_HEADER}: soon"], -math.inf),
    ],
)
def test_the_lease_is_renewed_by_leaders_and_by_those_who_know_that_nobody_led(
    monkeypatch, token, status, headers, renewed_at
):
    """It counts from when the request was sent: a network that breaks and heals may deliver the answer long after the
    operator gave it."""
    renewed = []
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=100.0)

    def answer(shown):
        clock.now += 10.0
        return leads_to(operator.url) if clock.now == 110.0 else (status, headers, OK)

    def renew(sent_at=None):
        renewed.append(sent_at)
        supervisor.exit_code.set_result(0)

    async def main():
        nonlocal operator, supervisor
        async with Operator(answer) as operator:
            supervisor = supervised(operator.url, token)
            reporter = Reporter(supervisor)
            reporter._compose = lambda: Report(ME, round=1)
            reporter._lease = SimpleNamespace(renew=renew)
            reporter._joined.set()
            reporter.at_once()
            await reporter._keep_reporting()

    operator = supervisor = None
    monkeypatch.setattr(control_client, "time", clock)
    asyncio.run(main())
    assert renewed == [renewed_at]  # a standby has taken the first ten seconds, and the answer came at 120


def test_what_a_script_has_told_in_events_is_cut_to_what_an_operator_accepts():
    told = []

    async def main():
        async def answer(report, timeout_s):
            told.extend(report.events)
            supervisor.exit_code.set_result(0)
            return Directive(1, DirectiveState.RUN, 1, "tag")

        supervisor = SimpleNamespace(
            settings=SimpleNamespace(operator_url="http://x", token_file="", ca_file="", one_machine=True),
            uploads=SimpleNamespace(take_records=list),
            exit_code=asyncio.get_running_loop().create_future(),
            obey=lambda directive: None,
            round=None,
            directive=None,
            draining_until=None,
            events=[{"reason": "Reason", "message": "\N{BROKEN HEART}" * 20_000}] * 60,
            software={},
        )
        reporter = Reporter(supervisor)
        reporter._compose, reporter._report = lambda: Report(ME, round=1), SimpleNamespace(report=answer)
        reporter._joined.set()
        reporter.at_once()
        await reporter._keep_reporting()

    asyncio.run(main())
    assert (len(told), told[0]["reason"]) == (50, "Reason")
    assert len(encode(Report(ME, round=1, events=told))) < Limits().body_bytes


def test_a_kept_connection_that_was_closed_is_opened_anew_once(token):
    async def main():
        cut = []

        def answer(shown):
            return None if cut and cut.pop() else (200, [], OK)

        async with Operator(answer) as operator:
            connection = Connection(Access(operator.url, token))
            await report(connection)
            cut.append(True)
            await report(connection)
            assert operator.connections == 2
            cut.extend([True, True])
            with pytest.raises(Unreachable):
                await report(connection)

    asyncio.run(main())


def test_nobody_at_the_address_is_unreachable(token):
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
        with pytest.raises(Unreachable, match="ConnectionRefused"):
            await report(Connection(Access(f"http://127.0.0.1:{port}", token)))

    asyncio.run(main())


@pytest.mark.parametrize("answer", [b"\r\n\r\n", b"garbage\r\n\r\n", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n"])
def test_somebody_who_answers_with_garbage_is_no_operator(token, answer):
    async def serve(reader, writer):
        writer.write(answer)
        await reader.read()
        writer.close()

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        with pytest.raises(Unreachable):
            await report(Connection(Access(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", token)))
        server.close()

    asyncio.run(main())


@pytest.mark.parametrize("url", ["", "operator:8443", "ftp://operator", "http://"])
def test_an_address_of_the_operator_that_is_none_is_named(url):
    with pytest.raises(ValueError, match="http://host:port is expected"):
        Access(url, "")
