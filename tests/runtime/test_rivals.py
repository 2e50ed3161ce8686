"""Two installations that manage the same jobs: they tell people, and don't fight."""

import asyncio

from tests.runtime.fakes import chance, cluster, job
from trainmaster_operator.cluster.port import EVENT, JOB, LEASE
from trainmaster_operator.planning.facts.observation import Decision
from trainmaster_operator.runtime.leader.lease import LeaseSettings
from trainmaster_operator.runtime.operator import Operator, default_policies
from trainmaster_operator.runtime.operator_settings import Settings
from trainmaster_operator.runtime.virtual_clock import run_virtual


def operator(memory, name):
    def stamp(spec, status, observed, now):
        fresh = status.model_copy(update={"leaderEpoch": observed.epoch})
        return Decision(fresh, intent=fresh != status)

    policies = default_policies()
    return Operator(
        memory,
        asyncio.get_running_loop().clock,
        chance(),
        Settings(operator_url="", identity=name, lease=LeaseSettings(namespace=name)),
        type(policies)(**{**vars(policies), "plan": stamp}),
    )


def test_two_operators_with_leases_of_their_own_leave_a_common_job_alone_and_say_why():
    async def main():
        store, memory = cluster()
        store.create(JOB, job())
        gone = {"holderIdentity": "", "leaseTransitions": 6}
        meta = {"namespace": "two", "name": "trainmaster-operator"}
        store.create(LEASE, {"apiVersion": "coordination.k8s.io/v1", "kind": LEASE, "metadata": meta, "spec": gone})
        both = [operator(memory, name) for name in ("one", "two")]
        works = [asyncio.create_task(each.run()) for each in both]
        await asyncio.sleep(600)
        epochs = [
            store.find(LEASE, name, "trainmaster-operator")["spec"]["leaseTransitions"] for name in ("one", "two")
        ]
        assert max(epochs) < 50  # a fight would reach thousands
        versions = int(store.list(JOB).resource_version)
        assert versions < 1000 + 2 * 600 / 2  # most of which are renewals of leases
        events = [event for event in store.list(EVENT).items if event["reason"] == "ReconcileError"]
        assert events
        assert all("another operator manages this job too" in event["message"] for event in events)
        loser = min(both, key=lambda each: each.leader.epoch)
        winner = max(both, key=lambda each: each.leader.epoch)
        winner.stop()
        await works[both.index(winner)]
        await asyncio.sleep(1000)
        assert (
            store.find(JOB, "space", "job")["status"]["internal"]["leaderEpoch"]
            == loser.leader.epoch
            > winner.leader.epoch
        )
        loser.stop()
        await works[both.index(loser)]

    run_virtual(main())
