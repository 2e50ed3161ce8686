"""kopf against a small API server: what it tells, what it asks for, how it ends."""

import asyncio
import json
import random
import signal
from contextlib import asynccontextmanager

import kopf
import pytest
from aiohttp import web

from tests.runtime.fakes import job
from trainmaster_operator.runtime import kopf_wiring
from trainmaster_operator.runtime.kopf_wiring import Backoffs, watch_jobs

PLURAL = "distributedtrainingjobs"
ROOT = "/apis/trainmaster.dev/v1alpha1"


def stored(name, version, uid=None):
    made = job(name)
    made["metadata"].update(uid=uid or f"uid-{name}", resourceVersion=str(version), managedFields=[{"manager": "x"}])
    return made


class ApiServer:
    """Lists `jobs`; a watch gets what is put into `events`. Notes every request that isn't a discovery."""

    def __init__(self, jobs, status, refused):
        self.jobs = jobs
        self.status = status
        self.refused = refused  # so many requests meet a 401 first
        self.events = asyncio.Queue()
        self.asked = []
        self.url = ""

    async def start(self):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

    async def answer(self, request):
        kind = {"name": PLURAL, "kind": "DistributedTrainingJob", "singularName": "", "namespaced": True}
        kind["verbs"] = ["get", "list", "watch"]
        core = [
            {"name": name, "kind": kind_, "singularName": "", "namespaced": name == "events", "verbs": ["list"]}
            for name, kind_ in (("namespaces", "Namespace"), ("events", "Event"))
        ]
        group = {"name": "trainmaster.dev", "versions": [{"version": "v1alpha1"}]}
        group["preferredVersion"] = {"version": "v1alpha1"}
        pages = {
            "/api": {"versions": ["v1"]},
            "/api/v1": {"resources": core},
            "/apis": {"groups": [group]},
            ROOT: {"resources": [kind]},
        }
        if request.path in pages:
            return web.json_response(pages[request.path])
        if self.refused:
            self.refused -= 1
            return web.json_response({"kind": "Status", "code": 401, "message": "who?"}, status=401)
        self.asked.append((request.method, request.path, dict(request.query)))
        if self.status != 200:
            return web.json_response({"kind": "Status", "code": self.status, "message": "no"}, status=self.status)
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "10"}, "items": self.jobs})
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            event = await self.events.get()
            await response.write(json.dumps(event).encode() + b"\n")


@asynccontextmanager
async def watching(jobs, namespace=None, status=200, refused=0):
    server = ApiServer(jobs, status, refused)
    await server.start()
    fed = asyncio.Queue()
    logins = []

    async def login():
        logins.append(True)
        return kopf.ConnectionInfo(server=server.url, token=str(len(logins)))

    started = asyncio.Event()
    server.logins, server.started = logins, started
    task = asyncio.create_task(
        watch_jobs(
            lambda deleted, obj: fed.put_nowait((deleted, obj["metadata"]["name"], obj)),
            login,
            random.Random(1),
            namespace,
            started.set,
        )
    )
    try:
        yield server, fed, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.runner.cleanup()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(kopf_wiring, "RETRIES", 2)
    monkeypatch.setattr(kopf_wiring, "LONGEST_RETRY_S", 0.01)


def run(main):
    asyncio.run(asyncio.wait_for(main(), 30))


def test_jobs_that_are_there_and_what_becomes_of_them_are_fed():
    async def main():
        async with watching([stored("old", 5)]) as (server, fed, task):
            assert (await fed.get())[:2] == (False, "old")
            for type, version in (("MODIFIED", 11), ("DELETED", 12)):
                server.events.put_nowait({"type": type, "object": stored("old", version)})
                deleted, name, obj = await fed.get()
                assert (deleted, name) == (type == "DELETED", "old")
                assert obj["metadata"]["resourceVersion"] == str(version)
                assert "managedFields" not in obj["metadata"]
            assert not task.done()

    run(main)


def test_nothing_is_written_and_nothing_but_jobs_is_asked_for():
    async def main():
        async with watching([stored("a", 5), stored("b", 6)]) as (server, fed, _):
            for _ in range(2):
                await fed.get()
            server.events.put_nowait({"type": "MODIFIED", "object": stored("a", 11)})
            server.events.put_nowait({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "12"}}})
            server.events.put_nowait({"type": "ADDED", "object": stored("c", 13)})
            for _ in range(2):
                await fed.get()
            assert [(method, path) for method, path, _ in server.asked] == [("GET", f"{ROOT}/{PLURAL}")] * 2
            watch = server.asked[1][2]
            assert (watch["watch"], watch["resourceVersion"], watch["timeoutSeconds"]) == ("true", "10", "300")

    run(main)


def test_one_namespace_can_be_enough():
    async def main():
        async with watching([stored("a", 5)], "space") as (server, fed, _):
            await fed.get()
            assert server.asked[0][1] == f"{ROOT}/namespaces/space/{PLURAL}"

    run(main)


def test_an_error_that_lasts_ends_it():
    async def main():
        async with watching([], status=500) as (server, _, task):
            with pytest.raises(Exception, match="no"):
                await task
            assert len(server.asked) == 3

    run(main)


def test_an_error_in_the_watch_ends_it_and_no_task_of_ours():
    async def main():
        async with watching([stored("a", 5)]) as (server, fed, task):
            await fed.get()
            ours = asyncio.create_task(asyncio.Event().wait())  # born after kopf's start
            server.events.put_nowait({"type": "ERROR", "object": {"code": 500, "message": "broken"}})
            with pytest.raises(Exception, match="broken"):
                await task
            assert not ours.done()
            ours.cancel()

    run(main)


def test_history_that_is_gone_is_listed_again():
    async def main():
        async with watching([stored("a", 5)]) as (server, fed, task):
            await fed.get()
            server.events.put_nowait({"type": "ERROR", "object": {"code": 410, "message": "too old"}})
            assert (await fed.get())[1] == "a"
            assert not task.done()

    run(main)


def test_credentials_that_are_refused_are_read_again():
    async def main():
        async with watching([stored("a", 5)], refused=1) as (server, fed, _):
            await fed.get()
            assert len(server.logins) == 2

    run(main)


def test_signals_can_be_taken_back_once_it_has_started():
    async def main():
        loop = asyncio.get_running_loop()
        async with watching([]) as (server, _, task):
            await server.started.wait()
            asked = asyncio.Event()
            loop.add_signal_handler(signal.SIGTERM, asked.set)
            try:
                signal.raise_signal(signal.SIGTERM)
                await asked.wait()
            finally:
                loop.remove_signal_handler(signal.SIGTERM)
            assert not task.done()

    run(main)


def test_the_waits_between_attempts_are_new_for_each_request_and_differ():
    waits = Backoffs(random.Random(1))
    first, second = list(waits), list(waits)
    assert len(first) == len(second) == kopf_wiring.RETRIES
    assert first != second
