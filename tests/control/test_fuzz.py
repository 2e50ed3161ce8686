"""Whatever comes in over HTTP: an answer below 500 or a closed connection, and the next agent is served."""

import asyncio
import contextlib
import json
import logging
import socket
import threading
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainmaster.contract.wire import Directive, DirectiveState, Identity, JoinRequest, Report, decode, encode
from trainmaster_operator.control.authentication import Admission
from trainmaster_operator.control.fleet import Fleet, FleetSettings, Refused
from trainmaster_operator.control.http_connections import ConnectionLimits
from trainmaster_operator.control.http_server import ControlServer, Limits, listening_socket
from trainmaster_operator.control.rate_limits import Allowance
from trainmaster_operator.runtime.clock import RealClock

ME = Identity("job-uid", "space", "job", "worker", 0, 0, "pod-uid")
ENOUGH_S = 20.0


HASTY = ConnectionLimits(head_s=0.02, keep_alive_s=0.05, linger_s=0.0)
PATIENT = ConnectionLimits(head_s=ENOUGH_S, keep_alive_s=ENOUGH_S, linger_s=0.0)


class Service:
    """A control channel without TLS, in a thread of its own."""

    def __init__(self, limits):
        self.limits = SimpleNamespace(**asdict(limits))  # which a request may change
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.sock = listening_socket("127.0.0.1", 0)
        self.port = self.sock.getsockname()[1]
        self.server = self.run(self.make())
        self.run(self.server.start(self.sock))

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    async def make(self):
        async def authenticate(credential, claim):
            if credential.secret != "good":
                raise Refused(401, "nobody's")
            return Admission(ME, "a session")

        fleet = Fleet(
            RealClock(),
            authenticate,
            lambda key, delay_s: None,
            lambda key, uid: uid == "job-uid",
            FleetSettings(hold_s=0.01),
        )
        fleet.publish(("space", "job"), "job-uid", 1, [0], lambda slot: Directive(1, DirectiveState.WAIT, 1, "tag"))
        plenty = Allowance(1e9, 1e9)
        limits = Limits(pod_requests=plenty, body_s=self.limits.head_s, connections=self.limits)
        return ControlServer(fleet, limits=limits)

    def close(self):
        self.run(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def exchange(self, raw, at_once=False):
        """Everything that is answered until the server closes, or says that it wants no more. `at_once`: a request that
        is all there before the server looks. It is given time: the machine may do something else for longer than half
        a request is waited for, just when the server has accepted the connection and not yet read from it."""
        hasty = self.limits.head_s
        if at_once:
            self.limits.head_s = ENOUGH_S
        made = socket.create_connection(("127.0.0.1", self.port))
        if at_once:
            made.sendall(raw)
        reader, writer = await asyncio.open_connection(sock=made)
        with contextlib.suppress(ConnectionError):
            if not at_once:
                writer.write(raw)
            await writer.drain()
        answers = b""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(ENOUGH_S):
                answers = await reader.read()
        writer.close()
        self.limits.head_s = hasty
        return answers


@pytest.fixture(scope="module")
def service():
    """One that soon gives up on who sends half a request."""
    made = Service(HASTY)
    yield made
    made.close()


@pytest.fixture(scope="module")
def patient():
    """One for whole requests, which are never late, whatever else the machine has to do."""
    made = Service(PATIENT)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def quiet(caplog):
    yield
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def post(path, body, headers=()):
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Authorization: Bearer good", "Connection: close", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def statuses(answers):
    return [int(part[1:4]) for part in answers.replace(b"HTTP/1.0", b"HTTP/1.1").split(b"HTTP/1.1")[1:]]


def check(service, raw):
    answers = service.run(service.exchange(raw))
    assert all(status < 500 for status in statuses(answers)), answers
    good = service.run(service.exchange(post("/v1/report", encode(Report(ME, round=1))), at_once=True))
    assert statuses(good) == [200]
    assert b"Trainmaster-Session: a session" in good
    return answers


words = st.text(max_size=8) | st.sampled_from(["identity", "round", "ranks", "verdict", "protocol", "\ud800", "nan"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=6,
)
paths = st.sampled_from(["/v1/join", "/v1/report"])


@given(
    paths, st.dictionaries(st.sampled_from([*Report.__dataclass_fields__, *JoinRequest.__dataclass_fields__]), values)
)
@settings(max_examples=60, deadline=None)
def test_any_shape_of_a_message(service, path, more):
    known = json.loads(encode(Report(ME, round=1)))
    check(service, post(path, json.dumps({**known, **more}).encode()))


@given(paths, st.binary(max_size=300))
@settings(max_examples=40, deadline=None)
def test_any_body(patient, path, body):
    assert statuses(check(patient, post(path, body))) == [400]


@given(st.binary(max_size=300))
@settings(max_examples=40, deadline=None)
def test_any_bytes(service, raw):
    check(service, raw)


HEADERS = [
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Content-Length: 3, 4",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Content-Encoding: gzip",
    "Expect: 100-continue",
    "Upgrade: websocket",
    "Connection: upgrade",
    "Authorization: Bearer",
    "Authorization: Session ä.ö",
    "Authorization: " + "x" * 9000,
    "Host: [",
    "X: \x00",
    ": empty",
    "no colon",
]


@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "PRI", "x", "P\x00ST"]),
    st.sampled_from(
        ["/v1/join", "/v1/report", "/", "*", "//", "/%ff", "/v1/join/../report", "http://x/v1/join", "x" * 9000, ""]
    ),
    st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/", ""]),
    st.lists(st.sampled_from(HEADERS), max_size=3),
    st.binary(max_size=50),
)
@example("GET", "/v1/join", "HTTP/1.1", ["Host: ["], b"")  # nothing is wrong with it but the method
@settings(max_examples=80, deadline=None)
def test_any_request(service, method, path, version, headers, body):
    check(service, "\r\n".join([f"{method} {path} {version}", *headers, "", ""]).encode() + body)


@pytest.mark.parametrize(
    "chunk", [b"zz\r\n", b"ffffffffffffffffff\r\n", b"5\r\nab", b"-1\r\n", b"1;" + b"x" * 70000, b""]
)
def test_broken_chunks(service, chunk):
    head = post("/v1/report", b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    check(service, head + chunk)


def test_many_requests_at_once_on_one_connection(patient):
    good = post("/v1/report", encode(Report(ME, round=1))).replace(b"Connection: close\r\n", b"")
    answers = patient.run(patient.exchange(good * 200 + post("/v1/report", b"x")))
    assert statuses(answers) == [200] * 200 + [400]


def test_a_body_in_many_parts_is_put_together(patient):
    message = encode(JoinRequest(ME, facts={"x": "y" * 200_000}))
    head = post("/v1/join", b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    parts = [message[at : at + 1000] for at in range(0, len(message), 1000)]
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [*parts, b""])
    answers = check(patient, head + body)
    assert statuses(answers) == [200]
    assert decode(Directive, answers.split(b"\r\n\r\n")[1]).tag == "tag"
