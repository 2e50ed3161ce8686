"""What one sender may ask for, and what strangers can make the control channel keep."""

import asyncio
import json
import ssl
from contextlib import asynccontextmanager, closing

import aiohttp
import pytest

from tests.control.world import Api, identity, replica
from trainmaster.contract.wire import Directive, JoinRequest, Report, decode, encode
from trainmaster_operator.control.http_connections import ConnectionLimits
from trainmaster_operator.control.http_server import ControlServer, Limits, listening_socket
from trainmaster_operator.control.rate_limits import Allowance, Bucket, Buckets

MEGABYTE = 1024 * 1024


def test_a_bucket_grants_a_burst_and_then_its_rate():
    bucket = Bucket(Allowance(rate=2, burst=3), 100.0)
    assert [bucket.take(100.0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert bucket.take(100.25) == 0.25
    assert bucket.take(100.5) == 0
    assert bucket.take(100.4) > 0  # a clock that steps back grants nothing
    assert [bucket.take(1000.0) for _ in range(4)] == [0, 0, 0, 0.5]


def test_buckets_of_those_who_went_are_forgotten():
    buckets = Buckets(Allowance(rate=1, burst=2))
    for second in range(100_000):
        assert buckets.take(second, float(second)) == 0
    assert len(buckets) < 100


def test_a_bucket_in_use_survives_a_sweep():
    buckets = Buckets(Allowance(rate=1, burst=2))
    buckets.take("me", 0.0)
    buckets.take("me", 0.0)
    for other in range(1000):
        buckets.take(other, 0.0)
    assert buckets.take("me", 0.0) == 1.0


class Scene:
    def __init__(self, api, leader, message, session, port, context):
        self.api, self.leader, self.message, self.session, self.port = api, leader, message, session, port
        self.context = context

    async def post(self, token="good", path="/v1/report", body=None):
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.post(path, data=self.message if body is None else body, headers=headers) as answer:
            return answer.status, await answer.read()

    async def raw(self):
        return await asyncio.open_connection("localhost", self.port, ssl=self.context)


@asynccontextmanager
async def scene(connections=None, **limits):
    api = Api()
    job = api.add_job()
    pods = [api.add_pod(job, slot) for slot in (0, 1)]
    api.issue(pods[0], "good")
    api.issue(pods[1], "other")
    bounds = Limits(**limits, connections=ConnectionLimits(**(connections or {})))
    async with replica(api, limits=bounds) as leader:
        context = ssl.create_default_context(cadata=leader.authority.bundle())
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        async with aiohttp.ClientSession(leader.url, connector=connector) as session:
            message = encode(Report(identity(job, pods[0]), round=1))
            made = Scene(api, leader, message, session, leader.port, context)
            made.others = encode(Report(identity(job, pods[1]), round=1))
            yield made


def head(length, token="good"):
    lines = ["POST /v1/report HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode()


async def send_until_refused(scene, head, chunk, count):
    """How many bytes the server took, and what it answered."""
    reader, writer = await scene.raw()
    writer.write(head)
    sent = 0
    with closing(writer):
        try:
            for _ in range(count):
                writer.write(chunk)
                await writer.drain()
                sent += len(chunk)
        except ConnectionError:
            pass
        try:
            answer = await reader.read()
        except (ConnectionError, ssl.SSLError):
            answer = b""
    return sent, answer


@pytest.mark.parametrize("token", ["good", "nobody's"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_100_megabytes_is_refused_without_being_read(token, chunked):
    async def main():
        async with scene(connections={"linger_s": 0.05}) as s:
            if chunked:
                start = head(0, token).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
                chunk = b"%x\r\n" % MEGABYTE + b"x" * MEGABYTE + b"\r\n"
            else:
                start, chunk = head(100 * MEGABYTE, token), b"x" * MEGABYTE
            sent, _ = await send_until_refused(s, start, chunk, 100)
            assert sent < 20 * MEGABYTE  # most of which lies in the buffers of two kernels
            assert (await s.post())[0] == 200

    asyncio.run(main())


def test_who_sends_too_much_can_read_why():
    async def main():
        async with scene() as s:
            reader, writer = await s.raw()
            writer.write(head(100 * MEGABYTE) + b"x")
            with closing(writer):
                answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 413")
            assert b"exceeded 1048576 bytes" in answer

    asyncio.run(main())


def test_a_request_whose_head_does_not_come_loses_its_connection():
    async def main():
        async with scene(connections={"head_s": 0.05}) as s:
            for dribble in (b"", b"P", head(10)[:-2]):
                reader, writer = await s.raw()
                writer.write(dribble)
                with closing(writer):
                    assert await reader.read() == b""  # returns when the other side closes
            reader, writer = await s.raw()
            with closing(writer):
                for _ in range(2):  # a good connection is under the same deadline after each of its requests
                    writer.write(head(len(s.message)) + s.message)
                    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                    await reader.readuntil(b"}")
                writer.write(b"POST /v1")
                assert await reader.read() == b""

    asyncio.run(main())


def test_a_body_that_does_not_come_is_refused():
    async def main():
        async with scene(connections={"linger_s": 0.0}, body_s=0.05) as s:
            reader, writer = await s.raw()
            writer.write(head(100) + b"x")
            with closing(writer):
                assert (await reader.read()).startswith(b"HTTP/1.1 408")

    asyncio.run(main())


def test_a_handshake_that_does_not_come_holds_nobody_up():
    async def main():
        async with scene(connections={"handshake_s": 0.05, "accepts": 2}) as s:
            silent = [await asyncio.open_connection("localhost", s.port) for _ in range(8)]
            assert (await s.post())[0] == 200
            for reader, writer in silent:
                assert await reader.read() == b""
                writer.close()

    asyncio.run(main())


def test_so_many_silent_handshakes_that_nobody_else_may_begin_one_are_ended():
    async def main():
        async with scene(connections={"handshakes": 4, "stuck_s": 0.05, "handshake_s": 600}) as s:
            silent = [await asyncio.open_connection("localhost", s.port) for _ in range(10)]
            assert (await s.post())[0] == 200
            for reader, _ in silent[:8]:
                assert await reader.read() == b""
            for _, writer in silent:
                writer.close()

    asyncio.run(main())


def test_more_come_at_once_than_may_begin_and_all_are_served():
    async def main():
        async with scene(connections={"handshakes": 2}, pod_connections=100) as s:
            statuses = [status for status, _ in await asyncio.gather(*(s.post() for _ in range(20)))]
            assert statuses == [200] * 20

    asyncio.run(main())


def test_a_flood_from_one_pod_is_refused_and_the_others_are_served():
    async def main():
        async with scene(pod_requests=Allowance(rate=0.01, burst=5)) as s:
            flood = [asyncio.create_task(s.post()) for _ in range(50)]
            others = [await s.post("other", body=s.others) for _ in range(3)]
            assert [status for status, _ in others] == [200] * 3
            statuses = [
                answer[0] if isinstance(answer, tuple) else type(answer)
                for answer in await asyncio.gather(*flood, return_exceptions=True)
            ]
            assert 0 < statuses.count(200) <= 5
            assert set(statuses) <= {200, 429, aiohttp.ServerDisconnectedError}

    asyncio.run(main())


def test_who_is_refused_for_asking_too_much_is_told_when_to_come_again():
    async def main():
        async with scene(pod_requests=Allowance(rate=0.1, burst=1)) as s:
            await s.post()
            headers = {"Authorization": "Bearer good"}
            async with s.session.post("/v1/report", data=s.message, headers=headers) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (429, "10")

    asyncio.run(main())


def test_a_pod_with_too_many_connections_loses_its_oldest():
    async def main():
        async with scene(pod_connections=2) as s:
            held = []
            for _ in range(4):
                reader, writer = await s.raw()
                writer.write(head(len(s.message)) + s.message)
                await reader.readuntil(b"\r\n\r\n")
                held.append((reader, writer))
            for reader, _ in held[:2]:
                await reader.read()  # returns since it was closed
            assert len(next(iter(s.leader.server._pods.values()))) == 2
            for _, writer in held:
                writer.close()
            while s.leader.server._pods:
                await asyncio.sleep(0.001)

    asyncio.run(main())


def test_no_more_connections_are_made_than_there_is_room_for():
    async def main():
        async with scene(connections={"connections": 2}) as s:
            held = [await s.raw() for _ in range(2)]
            room = s.leader.server._listener._room
            while room.is_set():
                await asyncio.sleep(0.001)
            late = asyncio.create_task(s.raw())
            held.pop()[1].close()
            held.append(await late)
            assert not room.is_set()
            for _, writer in held:
                writer.close()

    asyncio.run(main())


def test_who_is_refused_again_and_again_is_cut_off():
    async def main():
        async with scene() as s:
            reader, writer = await s.raw()
            with closing(writer):
                for _ in range(5):
                    writer.write(head(len(s.message), "bad") + s.message)
                answers = await reader.read()
            assert answers.count(b"HTTP/1.1 401") == 5
            assert answers.count(b"Connection: close") == 1
            assert (await s.post())[0] == 200

    asyncio.run(main())


def test_agents_ports_serve_no_people():
    async def main():
        async with scene() as s:
            for path in ("/v1/jobs/space/job", "/metrics", "/livez", "/"):
                async with s.session.get(path) as answer:
                    assert answer.status == 404
            async with s.session.get("/v1/join") as answer:
                assert answer.status == 405

    asyncio.run(main())


def test_an_error_of_ours_is_an_answer_and_the_next_request_is_served():
    async def main():
        class Broken:
            async def admit(self, credential, claim):
                raise RuntimeError("a fault of ours")

            async def join(self, proven, request):
                raise AssertionError

            report = join

        server = ControlServer(Broken())
        sock = listening_socket("127.0.0.1", 0)
        await server.start(sock)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{sock.getsockname()[1]}") as session:
            for _ in range(2):
                async with session.post("/v1/join", headers={"Authorization": "Bearer x"}) as answer:
                    assert answer.status == 500
                    assert "RuntimeError" in (await answer.json())["error"]
        await server.stop()

    asyncio.run(main())


def test_what_is_not_http_gets_400_and_no_traceback(caplog):
    async def main():
        async with scene() as s:
            for noise in (b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/join HTTP/1.1\r\nbad\r\n\r\n"):
                reader, writer = await s.raw()
                writer.write(noise)
                with closing(writer):
                    assert b" 400 Bad Request" in await reader.read()
            assert (await s.post())[0] == 200

    asyncio.run(main())
    assert "Traceback" not in caplog.text


def test_a_poll_that_is_held_takes_nothing_from_the_others():
    async def main():
        async with scene() as s:
            me = decode(Report, s.message).identity
            poll = asyncio.create_task(s.post(path="/v1/join", body=encode(JoinRequest(me, seen_tag="1"))))
            jobs = s.leader.operator.fleet._jobs  # it has the job as soon as a message of one of its agents was read
            while ("space", "job") not in jobs or not jobs["space", "job"].polls:
                await asyncio.sleep(0.001)
            assert decode(Directive, (await s.post())[1]).tag == "1"
            assert not poll.done()
            poll.cancel()

    asyncio.run(main())


def test_refusals_are_json():
    async def main():
        async with scene() as s:
            for body in (b"", b"[]", b"{", b"\xff"):
                status, answer = await s.post(body=body)
                assert status == 400
                assert json.loads(answer)["error"].startswith("Report")

    asyncio.run(main())
