"""Probes: who is stuck should be restarted, who isn't warm can't take over."""

import asyncio
import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import aiohttp

from tests.runtime.fakes import chance, cluster, job
from trainmaster_operator.cluster.port import JOB
from trainmaster_operator.planning.facts.observation import Decision
from trainmaster_operator.runtime.observability import health
from trainmaster_operator.runtime.observability.health import HealthServer
from trainmaster_operator.runtime.operator import STUCK_S, Operator, default_policies
from trainmaster_operator.runtime.operator_settings import Settings
from trainmaster_operator.runtime.virtual_clock import run_virtual


def test_the_probes_answer_with_sentences():
    wrong, missing = [], ["Pods are not listed yet"]

    async def metrics():
        return b"trainmaster_jobs 1\n"

    async def main():
        server = HealthServer(lambda: wrong, lambda: missing, metrics)
        listening = socket.create_server(("127.0.0.1", 0))
        await server.start(listening)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        async def got(session, path):
            async with session.get(url + path) as response:
                return response.status, await response.text()

        async with aiohttp.ClientSession() as session:
            assert await got(session, "/livez") == (200, "ok\n")
            assert await got(session, "/readyz") == (503, "Pods are not listed yet\n")
            missing.clear()
            wrong.append("nothing moves")
            assert await got(session, "/readyz") == (200, "ok\n")
            assert await got(session, "/livez") == (503, "nothing moves\n")
            assert await got(session, "/metrics") == (200, "trainmaster_jobs 1\n")
            assert (await got(session, "/v1/join"))[0] == 404
        await server.stop()

    asyncio.run(main())


def test_metrics_that_are_served_elsewhere_are_not_here():
    async def main():
        server = HealthServer(list, list, None)
        listening = socket.create_server(("127.0.0.1", 0))
        await server.start(listening)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            assert (response.status, await response.text()) == (
                404,
                "metrics are served over HTTPS, on the port for metrics\n",
            )
        await server.stop()

    asyncio.run(main())


def test_a_main_loop_that_is_busy_is_not_stuck_until_it_doesnt_turn_for_long(monkeypatch):
    """The probe is asked while the loop is held up: by another thread, since this one does the holding up."""

    async def main():
        server = HealthServer(list, list, None)
        listening = socket.create_server(("127.0.0.1", 0))
        await server.start(listening)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/livez"

        def probed():
            try:
                with urllib.request.urlopen(url, timeout=60) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        with ThreadPoolExecutor(1) as pool:
            busy = pool.submit(probed).result()  # nothing else happens in this loop until it is answered
            monkeypatch.setattr(health, "TURNS_WITHIN_S", 0.0)
            stuck = pool.submit(probed).result()
        await server.stop()
        return busy, stuck

    busy, (status, words) = asyncio.run(main())
    assert busy == (200, "ok\n")
    assert status == 503
    assert words.startswith("the event loop has been blocked for ")


def operating(memory, plan, identity="me", **settings):
    policies = default_policies()
    clock = asyncio.get_running_loop().clock
    return Operator(
        memory,
        clock,
        chance(),
        Settings(operator_url="", identity=identity, **settings),
        type(policies)(**{**vars(policies), "plan": plan}),
    )


def test_an_operator_is_stuck_when_its_watch_says_nothing_not_even_a_bookmark():
    async def main():
        _, memory = cluster()
        made = operating(memory, lambda spec, status, observed, now: Decision(status), relist_jobs_s=100.0)
        work = asyncio.create_task(made.run())
        await asyncio.sleep(STUCK_S - 1)
        assert made.stuck() == []
        assert made.warm
        await asyncio.sleep(2)
        assert made.stuck() == ["nothing was heard of any Pod for 121 s"]
        made.stop()
        await work

    run_virtual(main())


def test_an_operator_is_stuck_when_its_passes_do_not_end_and_a_standby_never_is():
    async def main():
        store, memory = cluster()
        for number in range(10):
            store.create(JOB, job(f"job-{number}"))
        made = operating(memory, lambda spec, status, observed, now: Decision(status), workers=2)
        standby = operating(memory, lambda spec, status, observed, now: Decision(status), identity="other")

        async def never(key):
            await asyncio.Event().wait()

        made.reconciler.reconcile = never
        work, waiting = asyncio.create_task(made.run()), asyncio.create_task(standby.run())
        await asyncio.sleep(STUCK_S + 1)
        assert made.stuck()[-1] == "the next job has waited for a pass for 121 s"
        assert "waited" not in " ".join(standby.stuck())
        made.stop()
        standby.stop()
        await asyncio.gather(work, waiting)

    run_virtual(main())
