"""A new leader doesn't take pods for lost that it only hasn't been told of yet."""

import asyncio

import pytest

from tests.runtime.test_reconcile import directives, operating, status
from trainmaster.contract.wire import Identity
from trainmaster_operator.cluster.port import JOB, POD, Listing
from trainmaster_operator.control.fleet import Refused
from trainmaster_operator.planning.facts.observation import Decision, PodToCreate
from trainmaster_operator.planning.rounds import round_pod_identity
from trainmaster_operator.planning.status_mapping import read_status, write_status
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.virtual_clock import run_virtual


def two_pods(spec, status, observed, now):
    if not status.incarnations:
        return Decision(status.model_copy(update={"incarnations": "0*2"}), intent=True)
    there = {pod.slot for pod in observed.pods}
    return Decision(status, create=tuple(PodToCreate("worker", slot, 0) for slot in (0, 1) if slot not in there))


def idle():
    """A plan that changes nothing, and the slots whose pods it saw, at each look."""
    seen = []

    def plan(spec, status, observed, now):
        seen.append(sorted(pod.slot for pod in observed.pods))
        return Decision(status)

    return seen, plan


async def left_behind():
    """What an operator leaves that has ended: a job of two pods."""
    async with operating(two_pods) as (store, spy, _, _):
        await asyncio.sleep(1)
        assert "get Pod" not in spy.calls  # of what we have written ourselves nobody knows more
        return store


def late(spy, kind):
    """What the server tells of this kind is from before there were any."""
    listed, watched = spy.list, spy.watch

    async def nothing(asked, namespace=None, labels=None):
        listing = await listed(asked, namespace, labels)
        return Listing([], "1") if asked == kind else listing

    async def silence(asked, version, namespace=None, labels=None):
        if asked == kind:
            await asyncio.Event().wait()
        async for event in watched(asked, version, namespace, labels):
            yield event

    spy.list, spy.watch = nothing, silence


def test_pods_that_the_watch_has_not_told_of_are_asked_for_once():
    seen, plan = idle()

    async def main():
        store = await left_behind()
        async with operating(plan, store=store) as (_, spy, operator, _):
            late(spy, POD)
            await asyncio.sleep(1)
            assert seen[0] == [0, 1]
            operator.queue.add(JobKey("space", "job"))
            await asyncio.sleep(1)
            assert len(seen) > 1
            assert spy.calls.count("get Pod") == 2

    run_virtual(main())


def test_pods_that_are_seen_are_not_asked_for_and_those_that_are_gone_stay_so():
    seen, plan = idle()

    async def main():
        store = await left_behind()
        store.delete(POD, "space", "job-worker-1-0", grace_s=0)
        async with operating(plan, store=store) as (_, spy, _, _):
            await asyncio.sleep(1)
            assert seen[0] == [0]
            assert spy.calls.count("get Pod") == 1

    run_virtual(main())


def test_a_pod_of_an_earlier_job_of_this_name_is_not_taken_for_ours():
    seen, plan = idle()

    async def main():
        store = await left_behind()
        pod = store.find(POD, "space", "job-worker-0-0")
        owner = {**pod["metadata"]["ownerReferences"][0], "uid": "another job's"}
        store.patch(POD, "space", "job-worker-0-0", {"metadata": {"ownerReferences": [owner]}})
        async with operating(plan, store=store) as (_, spy, _, _):
            late(spy, POD)
            await asyncio.sleep(1)
            assert seen[0] == [1]
            assert status(store)["incarnations"] == "0*2"

    run_virtual(main())


def test_agents_are_not_told_of_a_round_that_opened_with_other_pods():
    told = []

    def tell(spec, status, observed):
        told.append(status.roundPods)
        return directives(spec, status, observed)

    async def main():
        store = await left_behind()
        uids = [store.find(POD, "space", f"job-worker-{slot}-0")["metadata"]["uid"] for slot in (0, 1)]
        for digest, told_of_it in (("00000000", False), (round_pod_identity.digest(uids), True)):
            job = store.find(JOB, "space", "job")
            fields = {"round": 1, "roundMap": "0-1", "roundStore": "10.0.0.1:4000", "roundPods": digest}
            open_round = read_status(job["status"]).model_copy(update=fields)
            store.update_status(JOB, {**job, "status": write_status(open_round)})
            async with operating(idle()[1], store=store, tell=tell) as _:
                await asyncio.sleep(1)
            assert (digest in told) == told_of_it

    run_virtual(main())


def test_a_job_is_asked_for_once_before_its_agents_are_told_anything():
    """What the server listed is from before its status was written: by it, its agents would be of no slot."""
    seen = []

    def plan(spec, status, observed, now):
        seen.append(status.incarnations)
        return Decision(status)

    async def main():
        store = await left_behind()
        async with operating(plan, store=store) as (_, spy, operator, _):
            before(spy)
            await asyncio.sleep(1)
            operator.queue.add(JobKey("space", "job"))
            await asyncio.sleep(1)
            assert set(seen) == {"0*2"}
            assert spy.calls.count("get DistributedTrainingJob") == 1

    run_virtual(main())


def test_a_job_that_the_first_list_lacks_is_not_gone_before_the_watch_has_had_time_to_deliver_it():
    async def main():
        store = await left_behind()
        of_job = store.find(JOB, "space", "job")["metadata"]["uid"]
        agent = Identity("space", "job", of_job, "worker", 0, 0, "pod-uid")
        async with operating(idle()[1], store=store) as (_, spy, operator, _):
            late(spy, JOB)
            answers = []
            for seconds in (1, 8, 2):
                await asyncio.sleep(seconds)
                with pytest.raises(Refused) as refused:
                    operator.fleet.refuse_gone(agent)
                answers.append(refused.value.status)
            assert answers == [503, 503, 410]

    run_virtual(main())


def before(spy):
    """The list of jobs tells them as they were before anybody wrote a status, and no watch tells anything newer."""
    listed = spy.list

    async def old(asked, namespace=None, labels=None):
        listing = await listed(asked, namespace, labels)
        if asked != JOB:
            return listing
        jobs = []
        for job in listing.items:
            meta = {**job["metadata"], "resourceVersion": "1"}
            jobs.append({**{k: v for k, v in job.items() if k != "status"}, "metadata": meta})
        return Listing(jobs, "1")

    async def silence(asked, version, namespace=None, labels=None):
        await asyncio.Event().wait()
        yield

    spy.list, spy.watch = old, silence
