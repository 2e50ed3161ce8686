"""The operator's real processes over a small API server: who leads, what the others say, how they end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from benchmarks.ports import free_port
from tests.runtime.api_server import ApiServer, api_server
from tests.runtime.fakes import job
from tests.tied import tied
from trainmaster.contract.wire import LEADERLESS_HEADER
from trainmaster_operator.cluster.port import CONFIG_MAP, EVENT, JOB, LEASE, POD, SECRET, NotFound

pytestmark = pytest.mark.processes

SPACE = "trainmaster-test"
WAIT_S = 60.0


class Replica:
    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.control, self.health, self.metrics = free_port(), free_port(), free_port()
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, server: ApiServer, *arguments: str, plain: bool = True) -> None:
        kubeconfig = server.kubeconfig(self.log.with_suffix(".kubeconfig"))
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "trainmaster_operator.runtime.kubernetes_operator",
                *("--namespace-of-operator", SPACE, "--identity", self.name, "--address", "127.0.0.1"),
                *("--control-port", str(self.control), "--health-port", str(self.health)),
                *("--operator-url", f"https://operator.test:{self.control}", "--kubeconfig", str(kubeconfig)),
                *(["--plain-metrics"] if plain else ["--metrics-port", str(self.metrics)]),
                *arguments,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=tied(),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    async def get(self, path: str) -> tuple[int, str]:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.health}{path}") as got:
                return got.status, await got.text()
        except aiohttp.ClientError:
            return 0, ""

    async def metric(self, name: str) -> float | None:
        _, text = await self.get("/metrics")
        lines = [line for line in text.splitlines() if line.startswith(f"trainmaster_{name} ")]
        return float(lines[0].split()[1]) if lines else None

    async def scrape(self, bundle: str, token: str = "") -> tuple[int, str]:
        """What a scraper gets that trusts `bundle`."""
        context = ssl.create_default_context(cadata=bundle)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"https://127.0.0.1:{self.metrics}/metrics"
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers=headers, ssl=context, server_hostname="operator.test") as got,
        ):
            return got.status, await got.text()

    async def ready(self) -> bool:
        return (await self.get("/readyz"))[0] == 200

    async def join(self, bundle: str) -> tuple[int, str, dict[str, str]]:
        """What an agent with no token gets, over TLS checked as an agent checks it."""
        context = ssl.create_default_context(cadata=bundle)
        url = f"https://127.0.0.1:{self.control}/v1/join"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=b"{}", ssl=context, server_hostname="operator.test") as got,
        ):
            return got.status, await got.text(), dict(got.headers)

    async def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return await self.process.wait()


async def until(true, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        answer = true()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return
        assert time.monotonic() < deadline, f"still not: {what}"
        await asyncio.sleep(0.05)


@asynccontextmanager
async def replicas(folder: Path, *names: str, arguments=()):
    async with api_server() as server:
        made = [Replica(name, folder) for name in names]
        try:
            for replica in made:
                await replica.start(server, *arguments)
                await until(replica.ready, f"{replica.name} is ready")
            yield server, *made
        except BaseException:
            for replica in made:
                sys.stderr.write(f"--- {replica.name}\n{replica.log.read_text()[-6000:]}\n")
            raise
        finally:
            for replica in made:
                if replica.process is not None and replica.process.returncode is None:
                    replica.process.kill()
                    await replica.process.wait()


def holder(server: ApiServer) -> str:
    return str(server.store.find(LEASE, SPACE, "trainmaster-operator")["spec"]["holderIdentity"])


def bundle(server: ApiServer) -> str:
    return str(server.store.find(CONFIG_MAP, "space", "trainmaster-ca")["data"]["ca.crt"])


def is_there(server: ApiServer, kind: str, namespace: str, name: str) -> bool:
    try:
        return bool(server.store.find(kind, namespace, name))
    except NotFound:
        return False


def test_two_replicas_are_both_ready_one_leads_and_the_other_takes_over_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path, "one", "two") as (server, one, two):
            assert holder(server) == "one"
            assert (await one.metric("leader"), await two.metric("leader")) == (1, 0)
            renewals = 'trainmaster_api_calls_total{code="200",kind="Lease",verb="update"}'
            await until(lambda: _says(one, renewals), "renewals are counted")
            server.store.create(JOB, job())
            await until(lambda: is_there(server, POD, "space", "job-worker-1-0"), "the leader made the pods")
            assert is_there(server, SECRET, SPACE, "trainmaster-control")
            code, text, _ = await one.join(bundle(server))
            assert (code, "token" in text) == (401, True)
            code, text, headers = await two.join(bundle(server))
            assert (code, f"https://127.0.0.1:{one.control}" in text) == (421, True)
            assert LEADERLESS_HEADER not in headers

            assert await one.end() == 0
            assert "lease" not in one.log.read_text().lower().split("stopping")[-1]  # it was given up
            server.store.create(JOB, job("second"))
            await until(lambda: is_there(server, POD, "space", "second-worker-0-0"), "the other one leads")
            assert holder(server) == "two"
            assert (await two.metric("leader"), await two.metric("leader_epoch")) == (1, 2)
            code, _, headers = await two.join(bundle(server))
            assert (code, float(headers[LEADERLESS_HEADER]) >= 0) == (401, True)  # since it took over
            reasons = {event["reason"] for event in server.store.list(EVENT).items}
            assert "Accepted" in reasons
            assert await two.end() == 0
            assert {path for method, path in server.asked if "distributedtrainingjobs" in path and method != "GET"} == {
                f"/apis/trainmaster.dev/v1alpha1/namespaces/space/distributedtrainingjobs/{name}/status"
                for name in ("job", "second")
            }

    asyncio.run(main())


def test_a_standby_keeps_the_ranks_of_scripts_alive_while_the_api_server_is_away(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path, "one", "two", arguments=("--lease-seconds", "3")) as (server, one, two):
            server.store.create(JOB, job())
            await until(lambda: is_there(server, CONFIG_MAP, "space", "trainmaster-ca"), "agents can trust operators")
            trusted = bundle(server)
            await until(lambda: is_there(server, LEASE, SPACE, "two-standby"), "the standby has a Lease")
            first = server.store.find(LEASE, SPACE, "two-standby")["spec"]["renewTime"]
            await until(
                lambda: server.store.find(LEASE, SPACE, "two-standby")["spec"]["renewTime"] != first, "it is renewed"
            )
            assert LEADERLESS_HEADER not in (await two.join(trusted))[2]
            server.broken = True
            server.cut()

            async def vouches() -> bool:
                code, _, headers = await two.join(trusted)
                return (code, headers.get(LEADERLESS_HEADER)) == (421, "0.000")

            await until(vouches, "the standby vouches for agents")
            assert await one.process.wait() == 1
            assert await vouches()
            server.broken = False
            await until(lambda: holder(server) == "two", "the standby leads")
            await until(
                lambda: server.store.find(LEASE, SPACE, "two-standby")["spec"]["holderIdentity"] == "",
                "it is a standby no more",
            )

    asyncio.run(main())


def test_a_replica_whose_lease_was_taken_ends_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path, "one") as (server, one):
            lease = server.store.get(LEASE, SPACE, "trainmaster-operator")
            spec = {**lease["spec"], "holderIdentity": "somebody", "leaseTransitions": 7}
            server.store.update(LEASE, {**lease, "spec": spec})
            assert await one.process.wait() == 1
            assert "somebody holds the lease now" in one.log.read_text()

    asyncio.run(main())


def test_a_replica_that_was_frozen_for_too_long_ends_when_it_wakes_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path, "one", "two", arguments=("--lease-seconds", "3")) as (server, one, two):
            one.process.send_signal(signal.SIGSTOP)
            await until(lambda: holder(server) == "two", "the other one leads after the lease has run out")
            one.process.send_signal(signal.SIGCONT)
            assert await one.process.wait() == 1
            assert await two.metric("leader_epoch") == 2

    asyncio.run(main())


def test_jobs_that_came_and_went_while_the_api_server_was_away_are_found(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path, "one") as (server, one):
            server.store.create(JOB, job())
            await until(lambda: is_there(server, POD, "space", "job-worker-0-0"), "pods are made")
            server.broken = True
            server.cut()
            server.store.create(JOB, job("later"))
            await until(lambda: server.refused > 10, "it has tried again and again")
            server.broken = False
            await until(lambda: is_there(server, POD, "space", "later-worker-0-0"), "the new job has pods")
            assert one.process.returncode is None
            server.store.delete(JOB, "space", "later")
            await until(lambda: not is_there(server, POD, "space", "later-worker-0-0"), "its pods are gone")
            assert await one.end() == 0

    asyncio.run(main())


def test_a_kopf_that_fails_ends_the_process_which_gives_the_lease_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path, "one") as (server, one):
            server.spoiled = "distributedtrainingjobs"
            server.cut()
            assert await one.process.wait() == 1
            assert "spoiled" in one.log.read_text()
            assert holder(server) == ""

    asyncio.run(main())


def test_metrics_are_served_over_tls_to_those_alone_who_may_read_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with api_server() as server:
            for user in ("prometheus", "somebody"):
                server.token_of[user] = {"authenticated": True, "user": {"username": user, "groups": ["g"]}}
            server.scrapers.add("prometheus")
            one = Replica("one", tmp_path)
            await one.start(server, plain=False)
            try:
                await until(one.ready, "it is ready")
                bundle = server.store.get(CONFIG_MAP, SPACE, "trainmaster-ca")["data"]["ca.crt"]
                code, text = await one.scrape(bundle)
                assert (code, "a bearer token is missing" in text) == (401, True)
                code, text = await one.scrape(bundle, "invented")
                assert (code, "does not recognise this token" in text) == (401, True)
                code, text = await one.scrape(bundle, "somebody")
                assert (code, "somebody may not get /metrics" in text) == (403, True)
                code, text = await one.scrape(bundle, "prometheus")
                assert code == 200
                assert 'trainmaster_certificate_expiry_timestamp_seconds{certificate="server"}' in text
                assert 'trainmaster_channel_requests_total{result="ok"} 0.0' in text
                assert (await one.get("/metrics"))[0] == 404
                assert (await one.get("/livez"))[0] == 200
            finally:
                assert await one.end() == 0

    asyncio.run(main())


def test_a_replica_that_is_asked_to_end_before_it_can_start_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with api_server() as server:
            server.broken = True
            one = Replica("one", tmp_path)
            await one.start(server)
            await until(lambda: _answers(one), "it answers probes")
            assert (await one.get("/livez"))[0] == 200
            code, text = await one.get("/readyz")
            assert (code, "no certificate yet" in text, "Pods are not listed yet" in text) == (503, True, True)
            assert await one.end() == 0

    asyncio.run(main())


async def _says(replica: Replica, words: str) -> bool:
    return words in (await replica.get("/metrics"))[1]


async def _answers(replica: Replica) -> bool:
    return (await replica.get("/livez"))[0] != 0


def test_wrong_flags_and_no_cluster_are_one_sentence(tmp_path: Path) -> None:
    async def main() -> None:
        async with api_server() as server:
            one = Replica("one", tmp_path)
            await one.start(server, "--kubeconfig", str(tmp_path / "nowhere"))
            assert one.process is not None
            assert await one.process.wait() == 2
            text = one.log.read_text()
            assert "not a usable kubeconfig" in text
            with socket.socket() as taken:
                taken.bind(("", one.health))
                taken.listen()
                await one.start(server)
                assert await one.process.wait() == 2
            text = one.log.read_text()
            assert f"port {one.health}: Address already in use" in text
            assert "Traceback" not in text

    asyncio.run(main())
