"""One leader at a time, and it knows when it no longer is."""

import asyncio
import math

import pytest

from simulation.virtual.cluster_faults import Rates
from simulation.virtual.faulty_cluster import FaultyCluster
from tests.runtime.fakes import chance, cluster, pod
from trainmaster_operator.cluster.port import LEASE, POD, Forbidden
from trainmaster_operator.local import local_operator
from trainmaster_operator.runtime.leader.lease import ADDRESS, Elector, LeaseSettings, NotLeading
from trainmaster_operator.runtime.virtual_clock import run_virtual


def elector(inner, identity, **options):
    clock = asyncio.get_running_loop().clock
    return Elector(inner, clock, chance(), identity, LeaseSettings(**options))


def test_the_epoch_rises_with_each_change_of_the_holder_the_first_included():
    async def main():
        _, memory = cluster()
        first, second = elector(memory, "a"), elector(memory, "b")
        assert await first.acquire() == 1
        await first.release()
        assert await second.acquire() == 2
        await second.release()
        assert await first.acquire() == 3

    run_virtual(main())


def test_a_second_operator_waits_until_the_first_has_been_silent_for_the_lease():
    async def main():
        _, memory = cluster()
        clock = asyncio.get_running_loop().clock
        first, second = elector(memory, "a"), elector(memory, "b")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(120)
        assert first.leading
        assert not waiting.done()
        holding.cancel()
        stopped_at = clock.monotonic()
        assert await waiting == 2
        assert clock.monotonic() - stopped_at > 10  # by then the first has stopped by itself
        assert not first.leading
        with pytest.raises(NotLeading):
            first.check()

    run_virtual(main())


def test_a_takeover_does_not_wait():
    async def main():
        _, memory = cluster()
        await elector(memory, "a").acquire()
        assert await elector(memory, "b", takeover=True).acquire() == 2
        assert asyncio.get_running_loop().clock.monotonic() == 0

    run_virtual(main())


def test_a_leader_that_cannot_reach_the_server_stops_before_another_may_start():
    async def main():
        _, memory = cluster()
        clock = asyncio.get_running_loop().clock
        faulty = FaultyCluster(memory, chance())
        first, second = elector(faulty, "a"), elector(memory, "b")
        await first.acquire()
        cut = asyncio.create_task(faulty.outage(600))
        taking_over = asyncio.create_task(second.acquire())
        with pytest.raises(NotLeading):
            await first.hold()
        stopped_at = clock.monotonic()
        await taking_over
        assert stopped_at < clock.monotonic()
        cut.cancel()

    run_virtual(main())


def test_a_leader_whose_lease_was_taken_over_stops_at_its_next_renewal():
    async def main():
        _, memory = cluster()
        first = elector(memory, "a")
        await first.acquire()
        await elector(memory, "b", takeover=True).acquire()
        with pytest.raises(NotLeading):
            await first.hold()

    run_virtual(main())


def test_an_epoch_met_in_a_status_is_outgrown_by_who_holds_the_lease_and_ends_who_does_not():
    async def main():
        store, memory = cluster()
        first = elector(memory, "a")
        await first.acquire()
        await first.outgrow(41)
        assert first.epoch == 42
        assert store.find(LEASE, "default", "trainmaster-operator")["spec"]["leaseTransitions"] == 42
        second = elector(memory, "b", takeover=True)
        assert await second.acquire() == 43
        with pytest.raises(NotLeading):
            await first.outgrow(43)
        assert not first.leading

    run_virtual(main())


def test_a_renewal_whose_reply_was_lost_does_not_cost_the_lease():
    async def main():
        store, memory = cluster()
        first = elector(memory, "a")
        await first.acquire()
        lease = store.get(LEASE, "default", "trainmaster-operator")
        store.update(LEASE, {**lease, "spec": {**lease["spec"], "renewTime": "2027-01-01T00:00:00.000000Z"}})
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(60)
        assert first.leading
        assert not holding.done()
        holding.cancel()

    run_virtual(main())


def test_a_standby_that_watches_leads_as_soon_as_the_lease_is_given_up():
    async def main():
        _, memory = cluster()
        clock = asyncio.get_running_loop().clock
        first, second = elector(memory, "a", watch=True), elector(memory, "b", watch=True)
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(61.1)  # between two looks at the lease
        holding.cancel()
        released_at = clock.monotonic()
        await first.release()
        assert await waiting == 2
        assert clock.monotonic() - released_at < 0.1

    run_virtual(main())


def test_a_standby_whose_watch_fails_still_looks():
    async def main():
        _, memory = cluster()
        first = elector(memory, "a")
        await first.acquire()
        faulty = FaultyCluster(memory, chance(), rates=Rates(disconnect=1.0))
        waiting = asyncio.create_task(elector(faulty, "b", watch=True).acquire())
        await asyncio.sleep(5)
        await first.release()
        assert await waiting == 2

    run_virtual(main())


def test_a_standby_knows_that_nobody_leads_when_the_leader_has_stopped_and_its_own_calls_are_answered():
    async def main():
        _, memory = cluster()
        reached = FaultyCluster(memory, chance())
        first, second = elector(memory, "a"), elector(reached, "b")
        assert second.leaderless_s == math.inf
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(60)
        assert second.leaderless_s == math.inf  # all that it has read is of a leader
        holding.cancel()
        while second.leaderless_s == math.inf:
            assert not waiting.done()
            await asyncio.sleep(0.1)
        assert not first.leading
        assert second.leaderless_s < 0.2
        cut = asyncio.create_task(reached.outage(600))
        await asyncio.sleep(500)
        assert 499 < second.leaderless_s < 501  # it is cut off, and another may lead meanwhile
        cut.cancel()
        waiting.cancel()

    run_virtual(main())


def test_a_leader_knows_that_nobody_led_when_it_began():
    async def main():
        _, memory = cluster()
        first, second = elector(memory, "a"), elector(memory, "b")
        await first.acquire()
        await first.release()
        await second.acquire()
        holding = asyncio.create_task(second.hold())
        assert second.leaderless_s == 0
        await asyncio.sleep(60)
        assert (second.leading, second.leaderless_s) == (True, 60)
        holding.cancel()

    run_virtual(main())


def test_a_standby_knows_where_the_leader_listens():
    async def main():
        store, memory = cluster()
        first, second = elector(memory, "a", address="10.0.0.1:8443"), elector(memory, "b", address="10.0.0.2:8443")
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(5)
        assert second.rival_address == "10.0.0.1:8443"
        holding.cancel()
        await first.release()
        await waiting
        assert second.rival_address == ""
        lease = store.find(LEASE, "default", "trainmaster-operator")
        assert lease["metadata"]["annotations"][ADDRESS] == "10.0.0.2:8443"

    run_virtual(main())


def test_a_renewal_that_was_cut_off_by_the_end_does_not_keep_the_lease():
    async def main():
        store, memory = cluster()
        first = elector(memory, "a")
        await first.acquire()
        lease = store.get(LEASE, "default", "trainmaster-operator")  # the renewal that took effect unseen
        store.update(LEASE, {**lease, "spec": {**lease["spec"], "renewTime": "2027-01-01T00:00:00.000000Z"}})
        await first.release()
        assert store.find(LEASE, "default", "trainmaster-operator")["spec"]["holderIdentity"] == ""

    run_virtual(main())


def test_a_former_leader_does_not_release_the_lease_of_its_successor():
    async def main():
        store, memory = cluster()
        first = elector(memory, "a")
        await first.acquire()
        await elector(memory, "b", takeover=True).acquire()
        await first.release()
        assert store.find(LEASE, "default", "trainmaster-operator")["spec"]["holderIdentity"] == "b"

    run_virtual(main())


def test_a_standby_that_watches_replaces_a_dead_leader_when_its_lease_runs_out_and_no_later():
    async def main():
        _, memory = cluster()
        clock = asyncio.get_running_loop().clock
        first, second = elector(memory, "a", watch=True), elector(memory, "b", watch=True)
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(60.5)
        holding.cancel()
        await asyncio.sleep(0)
        renewed_at = 60.0  # the last renewal
        await waiting
        assert 15.0 < clock.monotonic() - renewed_at < 15.1
        assert not first.leading

    run_virtual(main())


def test_a_lease_whose_holder_is_a_pod_that_is_gone_is_taken_at_once():
    async def main():
        store, memory = cluster()
        clock = asyncio.get_running_loop().clock
        held = store.create(POD, pod("a"))
        first = elector(memory, "a", namespace="space", pod_uid=held["metadata"]["uid"])
        second = elector(memory, "b", namespace="space", pod_uid="b's")
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(1)  # an uninstall takes the right to release it before it ends the pod
        assert not waiting.done()
        store.delete(POD, "space", "a", grace_s=0)
        gone_at = clock.monotonic()
        assert await waiting == 2
        assert clock.monotonic() - gone_at <= 3  # its next look
        with pytest.raises(NotLeading):
            await first.hold()

    run_virtual(main())


def test_a_pod_that_took_the_name_of_the_holder_is_another_one():
    async def main():
        store, memory = cluster()
        store.create(POD, pod("a"))
        await elector(memory, "a", namespace="space", pod_uid="of an earlier a").acquire()
        second = elector(memory, "b", namespace="space")
        assert await second.acquire() == 2
        assert asyncio.get_running_loop().clock.monotonic() == 0

    run_virtual(main())


@pytest.mark.parametrize("why", ["its holder is no pod", "pods may not be read"])
def test_a_lease_whose_holder_may_live_is_waited_for(why):
    async def main():
        _, memory = cluster()

        async def refuse(kind, namespace, name):
            if kind == POD:
                raise Forbidden("pods is forbidden")
            return await get(kind, namespace, name)

        get, memory.get = memory.get, refuse
        await elector(memory, "a", namespace="space", pod_uid="" if why == "its holder is no pod" else "a's").acquire()
        assert await elector(memory, "b", namespace="space").acquire() == 2
        assert asyncio.get_running_loop().clock.monotonic() > 10

    run_virtual(main())


def test_a_leader_knows_for_how_long_nobody_led_before_it():
    async def main():
        _, memory = cluster()
        clock = asyncio.get_running_loop().clock
        first, second = elector(memory, "a"), elector(memory, "b")
        await first.acquire()
        assert first.absence is None
        released_at = clock.now()
        await first.release()
        await asyncio.sleep(300)
        await second.acquire()
        assert second.absence.since == pytest.approx(released_at, abs=0.01)
        assert second.absence.until == pytest.approx(clock.now(), abs=0.01)

    run_virtual(main())


def test_the_operator_of_a_local_run_leads_however_slow_it_is_until_the_next_one_takes_over():
    async def main():
        _, memory = cluster()
        clock = asyncio.get_running_loop().clock
        faulty = FaultyCluster(memory, chance())
        first = Elector(faulty, clock, chance(), "a", local_operator.LEASE)
        second = Elector(memory, clock, chance(), "b", local_operator.LEASE)
        await first.acquire()
        cut = asyncio.create_task(faulty.outage(600))
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(500)
        first.check()
        await cut
        await second.acquire()
        with pytest.raises(NotLeading):
            await holding

    run_virtual(main())
