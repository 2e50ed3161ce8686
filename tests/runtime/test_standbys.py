"""Standbys keep a script's ranks alive while the API server is away, and no leader replaces these ranks meanwhile."""

import asyncio
import contextlib
import math
import random

import pytest

from simulation.virtual.faulty_cluster import FaultyCluster
from tests.runtime.fakes import chance, cluster, pod
from trainmaster.agent.shell import self_fencing
from trainmaster_operator.cluster.port import LEASE, POD, Forbidden
from trainmaster_operator.planning.facts.observation import StandbyAnswers
from trainmaster_operator.planning.placement.replaced_pods import LOST_FOR_S, SCRIPT_FORCE_AFTER_S, STANDBY_VOUCHES_S
from trainmaster_operator.runtime.leader.lease import Elector, LeaseSettings, NotLeading
from trainmaster_operator.runtime.leader.standbys import STANDBY_LABEL
from trainmaster_operator.runtime.virtual_clock import run_virtual

DEAD_AFTER_S = self_fencing.LEASE_S + self_fencing.LOOK_S + self_fencing.CONNECT_S


def elector(inner, identity, **options):
    clock = asyncio.get_running_loop().clock
    return Elector(inner, clock, chance(), identity, LeaseSettings(standbys=True, watch=True, **options))


class Pair:
    """A leader and a standby, each with its own way to the API server, which have known each other for a minute."""

    def __init__(self):
        self.store, memory = cluster()
        self.ways = [FaultyCluster(memory, chance()) for _ in range(2)]
        self.leader, self.standby = (elector(way, name) for way, name in zip(self.ways, "ab", strict=True))

    async def __aenter__(self):
        await self.leader.acquire()
        self.works = [asyncio.create_task(self.leader.hold()), asyncio.create_task(self.standby.acquire())]
        await asyncio.sleep(60)
        return self

    async def __aexit__(self, *error):
        for work in self.works:
            work.cancel()
        await asyncio.gather(*self.works, return_exceptions=True)

    def cut(self, *ways):
        cuts = [asyncio.create_task(way.outage(1e6)) for way in ways]
        self.works += cuts
        return cuts

    def own_lease(self):
        return self.store.get(LEASE, "default", "b-standby")


def test_a_standby_vouches_for_agents_before_the_last_leader_stops_when_the_api_server_goes_away():
    async def main():
        async with Pair() as pair:
            assert not pair.standby.vouches
            pair.cut(*pair.ways)
            while pair.leader.leading:
                assert not pair.leader.vouches
                await asyncio.sleep(0.01)
            assert pair.standby.vouches
            await asyncio.sleep(STANDBY_VOUCHES_S - 20)
            assert pair.standby.vouches
            await asyncio.sleep(30)
            assert not pair.standby.vouches

    run_virtual(main())


def test_a_standby_that_reaches_the_api_server_vouches_for_nobody():
    async def main():
        async with Pair() as pair:
            for _ in range(1000):
                await asyncio.sleep(0.1)
                assert not pair.standby.vouches
                assert pair.leader.standby_answers == StandbyAnswers(pair.leader.standby_answers.ended_s)
                assert pair.leader.standby_answers.ended_s > 60
            (cut,) = pair.cut(pair.ways[1])
            await asyncio.sleep(60)
            assert pair.standby.vouches
            cut.cancel()
            await asyncio.sleep(5)
            assert not pair.standby.vouches

    run_virtual(main())


def test_a_standby_whose_renewals_alone_fail_vouches_for_nobody():
    async def main():
        async with Pair() as pair:
            for verb in ("update", "list"):

                async def fail(*arguments, **more):
                    raise Forbidden("no")

                setattr(pair.ways[1], verb, fail)
                for _ in range(600):
                    await asyncio.sleep(0.1)
                    assert not pair.standby.vouches

    run_virtual(main())


def test_a_standby_that_no_leader_can_know_of_vouches_for_nobody():
    async def main():
        _, memory = cluster()
        way = FaultyCluster(memory, chance())
        cut = asyncio.create_task(way.outage(1e6))
        lone = elector(way, "b")
        waiting = asyncio.create_task(lone.acquire())
        for _ in range(400):
            await asyncio.sleep(1)
            assert not lone.vouches
        waiting.cancel()
        cut.cancel()

    run_virtual(main())


def test_a_leader_counts_on_the_answers_of_a_standby_that_it_does_not_hear_until_these_must_have_ended():
    async def main():
        async with Pair() as pair:
            (cut,) = pair.cut(pair.ways[1])
            while not pair.standby.vouches:
                await asyncio.sleep(0.1)
            answers = pair.leader.standby_answers
            assert (answers.standby, answers.ended_s < -280) == ("b", True)
            while pair.standby.vouches:
                assert pair.leader.standby_answers.ended_s < 0
                await asyncio.sleep(1)
            await asyncio.sleep(10)
            answers = pair.leader.standby_answers
            assert (answers.standby, 0 < answers.ended_s < 12) == ("", True)
            cut.cancel()
            await asyncio.sleep(10)
            assert 10 < pair.leader.standby_answers.ended_s < 22

    run_virtual(main())


@pytest.mark.parametrize("back", [True, False], ids=["it is heard again", "its pod is gone, and its Lease with it"])
def test_a_leader_is_soon_sure_again(back):
    async def main():
        async with Pair() as pair:
            (cut,) = pair.cut(pair.ways[1])
            await asyncio.sleep(30)
            assert pair.leader.standby_answers.standby == "b"
            if back:
                cut.cancel()
            else:
                pair.store.delete(LEASE, "default", "b-standby")
            await asyncio.sleep(8)
            answers = pair.leader.standby_answers
            assert (answers.standby, 0 < answers.ended_s <= 8) == ("", True)

    run_virtual(main())


def test_a_new_leader_is_not_in_doubt_of_its_own_time_as_a_standby_or_of_the_last_leader():
    async def main():
        async with Pair() as pair:
            pair.cut(pair.ways[0])
            while not pair.standby.leading:
                await asyncio.sleep(0.1)
            assert not pair.standby.vouches
            pair.works.append(asyncio.create_task(pair.standby.hold()))
            await asyncio.sleep(60)
            assert pair.own_lease()["spec"]["holderIdentity"] == ""
            assert pair.standby.standby_answers.ended_s == math.inf
            assert (pair.standby.leading, pair.standby.vouches) == (True, False)

    run_virtual(main())


def test_a_leader_that_may_not_read_the_leases_of_standbys_waits_for_none():
    async def main():
        _, memory = cluster()

        async def refuse(*arguments, **more):
            raise Forbidden("leases is forbidden")

        memory.list = refuse
        leader = elector(memory, "a")
        await leader.acquire()
        assert leader.standby_answers.ended_s == 0
        holding = asyncio.create_task(leader.hold())
        await asyncio.sleep(1)
        assert leader.standby_answers.ended_s == math.inf
        holding.cancel()

    run_virtual(main())


def test_the_lease_of_a_standby_is_deleted_with_its_pod():
    async def main():
        store, memory = cluster()
        await elector(memory, "a").acquire()
        body = {**pod("b"), "metadata": {"namespace": "default", "name": "b"}}
        uid = store.create(POD, body)["metadata"]["uid"]
        way = FaultyCluster(memory, chance())
        standby = elector(way, "b", pod_uid=uid)
        waiting = asyncio.create_task(standby.acquire())
        await asyncio.sleep(5)
        assert store.get(LEASE, "default", "b-standby")
        store.delete(POD, "default", "b", grace_s=0)
        assert not store.list(LEASE, "default", {STANDBY_LABEL: "trainmaster-operator"}).items
        await asyncio.sleep(5)  # the process lives on, and no leader can know of it
        cut = asyncio.create_task(way.outage(1e9))
        for _ in range(400):
            await asyncio.sleep(1)
            assert not standby.vouches
        waiting.cancel()
        cut.cancel()

    run_virtual(main())


class BrokenNetwork:
    """Three operators and the agent of a script, whose links break and heal at random moments."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.clock = asyncio.get_running_loop().clock
        _, memory = cluster()
        self.ways = {
            name: FaultyCluster(memory, random.Random(seed), latency_s=(0.0, self.chance.choice([0.01, 0.4])))
            for name in "abc"
        }
        self.cuts = {}
        self.electors = {}
        self.reached = dict.fromkeys("abc", True)  # by the agent
        self.answered_at = {}  # by each leader, since it leads
        self.api_at = self.renewed_at = 0.0
        self.api_reached = True
        self.removals = self.vouched = 0

    async def operate(self, name):
        while True:
            one = self.electors[name] = elector(self.ways[name], name)
            await one.acquire()
            self.answered_at[name] = self.clock.monotonic()
            with contextlib.suppress(NotLeading):
                await one.hold()
            await asyncio.sleep(2)  # until the process runs again

    async def break_links(self):
        while True:
            await asyncio.sleep(self.chance.choice([5, 20, 60, 400]) * self.chance.random())
            far = self.chance.random() < 0.5  # all that is far from the API server is together
            for name in "abc":
                if self.chance.random() < 0.5:
                    cut = self.cuts.pop(name, None)
                    if cut is not None:
                        cut.cancel()
                    else:
                        self.cuts[name] = asyncio.create_task(self.ways[name].outage(1e9))
                self.reached[name] = (name in self.cuts) == far or self.chance.random() < 0.1
            self.api_reached = not far or self.chance.random() < 0.1

    async def watch(self, duration_s):
        for _ in range(int(duration_s / 0.5)):
            await asyncio.sleep(0.5)
            now = self.clock.monotonic()
            if self.api_reached:
                self.api_at = self.renewed_at = now
            for name, one in self.electors.items():
                if not self.reached[name]:
                    continue
                if one.leading:
                    self.answered_at[name] = self.renewed_at = now
                else:
                    self.vouched += one.vouches
                    self.renewed_at = max(self.renewed_at, now if one.vouches else now - one.leaderless_s)
            for name, one in self.electors.items():
                if one.leading and self.may_remove(one, name, now):
                    self.removals += 1
                    assert now - self.renewed_at >= DEAD_AFTER_S, f"{name} replaces ranks that live"

    def may_remove(self, one, name, now):
        """As the planner does, in a cluster that knows of a lost node as early as it can."""
        lost = now - self.api_at >= 10 + LOST_FOR_S
        last_s = min(now - self.answered_at[name], one.standby_answers.ended_s)
        return lost and last_s >= SCRIPT_FORCE_AFTER_S


@pytest.mark.parametrize("seed", range(6))
def test_no_leader_replaces_ranks_that_an_answer_of_another_operator_may_keep_alive(seed):
    async def main():
        network = BrokenNetwork(seed)
        works = [asyncio.create_task(network.operate(name)) for name in "abc"]
        works.append(asyncio.create_task(network.break_links()))
        await network.watch(3000)
        assert network.removals
        assert network.vouched
        for work in [*works, *network.cuts.values()]:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    run_virtual(main())
