"""Who is let in, in virtual time and without sockets."""

import asyncio
import base64
import json
import random
from dataclasses import dataclass

import pytest

from tests.control.world import Api, identity
from trainmaster_operator.cluster.port import POD, Forbidden, Unavailable
from trainmaster_operator.control.authentication import Credential
from trainmaster_operator.control.fleet import Refused
from trainmaster_operator.control.session_tokens import LIFETIME_S, Session, new_session, seal, unseal
from trainmaster_operator.runtime import authenticators
from trainmaster_operator.runtime.authenticators import Known, PodTokens
from trainmaster_operator.runtime.cache.cache_records import owning_job, pod_entry
from trainmaster_operator.runtime.cache.informer import Informer
from trainmaster_operator.runtime.virtual_clock import run_virtual

KEY = b"k" * 32


@dataclass
class Scene:
    api: Api
    job: dict
    pods: list
    informer: Informer
    tokens: PodTokens
    watching: asyncio.Task
    gone: bool = False

    def refuse_gone(self, who):
        if self.gone:
            raise Refused(410, f"{who.job} is gone")

    async def admit(self, secret, scheme="bearer", tokens=None):
        async def claim():
            raise AssertionError("who speaks is proven without its claim")

        known = Known(self.informer, self.refuse_gone)
        return await (tokens or self.tokens).authenticate(Credential(scheme, secret), claim, known)

    async def status(self, secret, scheme="bearer"):
        with pytest.raises(Refused) as caught:
            await self.admit(secret, scheme)
        return caught.value.status


def running(test):
    """In virtual time, with two pods in the cache."""

    def run():
        async def main():
            clock = asyncio.get_running_loop().clock
            api = Api()
            job = api.add_job()
            pods = [api.add_pod(job, slot) for slot in (0, 1)]
            api.issue(pods[0], "good")
            informer = Informer(
                api,
                POD,
                slim=lambda obj, known: pod_entry(obj, known, 0.0),
                owner=owning_job,
                changed=lambda key: None,
                chance=random.Random(1),
                labels={"trainmaster.dev/job": None},
            )
            watching = asyncio.create_task(informer.run())
            await informer.synced.wait()
            await test(Scene(api, job, pods, informer, PodTokens(api, clock, lambda: KEY), watching))
            watching.cancel()

        run_virtual(main())

    run.__name__ = test.__name__
    return run


@running
async def test_a_pod_is_what_the_cache_says_it_is(s):
    admitted = await s.admit("good")
    assert admitted.identity == identity(s.job, s.pods[0])
    again = await s.admit(admitted.session, "session")
    assert (again.identity, again.session) == (admitted.identity, "")


@running
async def test_a_pod_that_the_cache_does_not_have_yet_is_waited_for(s):
    s.api.issue(s.api.add_pod(s.job, 2), "new")
    assert len(s.informer) == 2  # its watch has not had its turn yet
    assert (await s.admit("new")).identity.slot == 2


@running
async def test_a_pod_that_does_not_come_into_the_cache_is_told_to_come_again(s):
    s.watching.cancel()
    pod = s.api.add_pod(s.job, 2)
    assert await s.status(s.api.issue(pod, "new")) == 503
    assert asyncio.get_running_loop().time() == pytest.approx(authenticators.POD_WAIT_S, abs=0.1)


@running
async def test_sessions_end(s):
    session = (await s.admit("good")).session
    await asyncio.sleep(LIFETIME_S - 601)
    await s.admit(session, "session")
    await asyncio.sleep(602)
    assert await s.status(session, "session") == 401


@running
async def test_a_session_of_a_stale_pod_is_told_so_and_no_other(s):
    session = (await s.admit("good")).session
    s.api.store.delete(POD, "space", s.pods[0]["metadata"]["name"], grace_s=0)
    await asyncio.sleep(1)
    assert await s.status(session, "session") == 401
    s.gone = True
    assert await s.status(session, "session") == 410
    assert await s.status(session[:-1] + "x", "session") == 401
    assert await s.status("good") == 401  # its token died with it


@running
async def test_a_pod_that_bears_the_name_of_a_dead_one_is_not_that_one(s):
    session = (await s.admit("good")).session
    s.api.store.delete(POD, "space", s.pods[0]["metadata"]["name"], grace_s=0)
    again = s.api.add_pod(s.job, 0)
    await asyncio.sleep(1)
    assert await s.status(session, "session") == 401
    assert (await s.admit(s.api.issue(again, "again"))).identity.pod_uid == again["metadata"]["uid"]


@running
async def test_another_replica_with_the_same_key_knows_the_session_and_one_with_another_does_not(s):
    session = (await s.admit("good")).session
    clock = asyncio.get_running_loop().clock
    await s.admit(session, "session", PodTokens(s.api, clock, lambda: KEY))
    with pytest.raises(Refused):
        await s.admit(session, "session", PodTokens(s.api, clock, lambda: b"x" * 32))


@running
async def test_other_schemes_and_odd_tokens_are_refused(s):
    assert await s.status("good", "basic") == 401
    assert await s.status("gööd") == 401
    for odd in ("a.b.c", "a.e30.c", "..", "a." + base64.urlsafe_b64encode(b"[" * 4000).decode() + ".c"):
        assert await s.status(odd) == 401


@running
async def test_an_api_server_that_cannot_tell_is_not_a_refusal(s):
    async def broken(token, audience):
        raise Forbidden("no rights to review tokens")

    s.api.away = True
    assert await s.status("good") == 503
    s.api.review_token = broken
    assert await s.status("good") == 503


@running
async def test_a_pod_that_cannot_be_looked_at_is_not_let_in(s):
    lone = s.api.store.create(
        POD,
        {
            "apiVersion": "v1",
            "kind": POD,
            "metadata": {"name": "lone", "namespace": "space"},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        },
    )
    s.api.issue(lone, "lone")
    assert await s.status("lone") == 403
    for error, status in ((Unavailable("away"), 503), (Forbidden("not there"), 403)):

        async def get(kind, namespace, name, error=error):
            raise error

        s.api.get = get
        assert await s.status("lone") == status


@running
async def test_few_tokens_are_reviewed_at_a_time(s):
    at_once, most = 0, 0
    review = s.api.review_token

    async def slow(token, audience):
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        return await review(token, audience)

    s.api.review_token = slow
    await asyncio.gather(*(s.admit("good") for _ in range(1000)))
    assert most == authenticators.REVIEWS


@running
async def test_tokens_do_not_wait_for_ever_for_an_api_server_that_does_not_answer(s):
    async def hang(token, audience):
        await asyncio.Event().wait()

    s.api.review_token = hang
    hanging = [asyncio.create_task(s.admit("good")) for _ in range(authenticators.REVIEWS)]
    await asyncio.sleep(0.1)
    assert await s.status("good") == 503
    for task in hanging:
        task.cancel()


def token_of(pod, mark):
    meta = pod["metadata"]
    bound = {"namespace": meta["namespace"], "pod": {"name": meta["name"], "uid": meta["uid"]}}
    payload = base64.urlsafe_b64encode(json.dumps({"kubernetes.io": bound, "n": mark}).encode()).decode().rstrip("=")
    return f"e30.{payload}.signature"


@running
async def test_a_flood_of_tokens_of_one_pod_costs_the_api_server_little_and_the_others_nothing(s):
    refused = 0
    for mark in range(1000):  # invented ones, in the name of a pod that we know
        refused += await s.status(token_of(s.pods[0], mark)) == 429
    assert refused > 900
    assert s.api.reviews < 100
    await s.admit(s.api.issue(s.pods[1], token_of(s.pods[1], 0)))


@running
async def test_a_flood_of_invented_tokens_keeps_no_known_pod_out(s):
    for mark in range(5000):
        await s.status(f"invented {mark}")
    assert s.api.reviews < 4000
    await s.admit(s.api.issue(s.pods[0], token_of(s.pods[0], 0)))


def test_sessions_can_neither_be_changed_nor_made():
    api = Api()
    job = api.add_job()
    who = identity(job, api.add_pod(job, 0))
    session = new_session(who, "pod", 1000.0)
    text = seal(session, KEY)
    assert unseal(text, KEY, 1000.0) == session
    assert unseal(text, KEY, session.expires_at) is None
    payload, signature = text.split(".")
    other = seal(Session(identity(job, api.add_pod(job, 1)), "pod", 9e9), b"x" * 32)
    for forged in (
        payload,
        f".{signature}",
        f"{payload}.",
        f"{payload}x.{signature}",
        f"{payload}.{signature}=",
        f"{other.split('.')[0]}.{signature}",
        other,
        text.upper(),
        "x" * 5000,
    ):
        assert unseal(forged, KEY, 1000.0) is None
    with pytest.raises(AssertionError):
        seal(session, b"short")


def test_sessions_of_pods_that_start_together_end_apart():
    api = Api()
    job = api.add_job()
    ends = {new_session(identity(job, api.add_pod(job, slot)), "pod", 0.0).expires_at for slot in range(50)}
    assert len(ends) > 30
    assert max(ends) <= LIFETIME_S
    assert min(ends) > LIFETIME_S - 600
