"""The fleet: who may speak, what is news, who is told what and when."""

import asyncio
from dataclasses import replace

import pytest

from trainmaster.contract.wire import (
    Cause,
    CheckpointRecord,
    Directive,
    DirectiveState,
    Granted,
    Identity,
    JoinRequest,
    RankReport,
    RankState,
    Report,
    StoreAddress,
    UploadReport,
    Verdict,
)
from trainmaster_operator.control.agent_pacing import CROWD
from trainmaster_operator.control.authentication import Admission, Credential
from trainmaster_operator.control.fleet import Fleet, FleetSettings, Refused
from trainmaster_operator.planning.facts.observation import SaveFailed
from trainmaster_operator.runtime.virtual_clock import run_virtual

KEY = ("space", "job")
ME = Identity("job-uid", "space", "job", "worker", 0, 0, "pod-uid")


class Bench:
    """A fleet with one published job."""

    def __init__(self):
        self.clock = asyncio.get_running_loop().clock
        self.marks: list[float] = []
        self.decided: list[float] = []
        self.uid: str | None = "job-uid"
        self.told: list[tuple[str, str]] = []
        self.fleet = Fleet(
            self.clock,
            self.authenticate,
            lambda key, delay_s: self.marks.append(delay_s),
            lambda key, uid: uid == self.uid,
            FleetSettings(hold_s=8, first_directive_s=2),
            self.decided.append,
            lambda key, reason, message: self.told.append((reason, message)),
        )

    async def authenticate(self, credential, claim):
        if credential.secret != "good":
            raise Refused(401, "nobody's")
        return Admission(await claim())

    def publish(self, round=1, incarnations=(0, 0), state=DirectiveState.RUN, uid="job-uid"):
        self.fleet.publish(
            KEY, uid, round, incarnations, lambda slot: Directive(1, state, round, f"{state.value}{round}")
        )

    async def crowd(self, size, round=1):
        """So many agents that have all reported; returns who they are."""
        self.publish(round=round, incarnations=[0] * size)
        members = [replace(ME, slot=slot, pod_uid=f"pod-{slot}" if slot else ME.pod_uid) for slot in range(size)]
        for one in members:
            await self.report_of(one, round=round)
        self.marks.clear()
        return members

    async def report_of(self, one, **fields):
        return await self.fleet.report(one, Report(one, **fields))

    def news(self):
        """Whether something since the last call asked for a pass at once."""
        marks, self.marks[:] = list(self.marks), []
        return 0.0 in marks


def report(round=1, **fields):
    return Report(ME, round=round, **fields)


def verdict(round=1, age_s=0.0):
    return Verdict(rank=0, cause=Cause.CRASH, round=round, message="died", age_s=age_s)


def rank(**fields):
    return RankReport(**{"rank": 0, "pid": 1, "state": RankState.RUNNING, **fields})


async def refusal(call):
    with pytest.raises(Refused) as caught:
        await call
    return caught.value.status


def test_a_poll_is_held_until_the_directive_changes():
    async def main():
        bench = Bench()
        bench.publish(round=1)
        first = await bench.fleet.join(ME, JoinRequest(ME))
        assert (first.tag, bench.clock.monotonic()) == ("run1", 0)
        poll = asyncio.create_task(bench.fleet.join(ME, JoinRequest(ME, seen_tag="run1")))
        await asyncio.sleep(3)
        bench.publish(round=1)
        await asyncio.sleep(1)
        assert not poll.done()
        bench.publish(round=2)
        assert (await poll).tag == "run2"

    run_virtual(main())


def test_a_poll_without_a_change_answers_the_same_after_the_hold():
    async def main():
        bench = Bench()
        bench.publish()
        answer = await bench.fleet.join(ME, JoinRequest(ME, seen_tag="run1"))
        assert answer.tag == "run1"
        assert bench.clock.monotonic() == 8

    run_virtual(main())


def test_a_join_with_another_pods_identity_is_refused():
    async def main():
        bench = Bench()
        bench.publish(incarnations=(1, 0))
        assert await refusal(bench.fleet.admit(Credential("bearer", "bad"), None)) == 401
        others = [{"job_uid": "x"}, {"job": "x"}, {"namespace": "x"}, {"slot": 1}, {"incarnation": 1}, {"pod_uid": "x"}]
        for change in others:
            stranger = replace(ME, **change)
            assert await refusal(bench.fleet.join(stranger, JoinRequest(ME))) == 403
            assert await refusal(bench.fleet.report(ME, Report(stranger, round=1))) == 403
        bench.uid = None
        assert await refusal(bench.fleet.join(replace(ME, slot=1), JoinRequest(ME))) == 403
        assert bench.fleet.agents(KEY, [1, 0]) == {}

    run_virtual(main())


def test_a_stale_incarnation_is_gone_and_one_that_is_not_known_yet_must_wait():
    async def main():
        bench = Bench()
        bench.publish(incarnations=(1, 0))
        assert await refusal(bench.fleet.report(ME, report())) == 410
        newer = replace(ME, incarnation=2)
        assert await refusal(bench.fleet.report(newer, Report(newer, round=1))) == 503
        for slot in (5, -1):
            nowhere = replace(ME, slot=slot)
            assert await refusal(bench.fleet.report(nowhere, Report(nowhere, round=1))) == 410

    run_virtual(main())


def test_an_agent_of_a_job_that_is_gone_is_told_so():
    async def main():
        bench = Bench()
        bench.publish()
        poll = asyncio.create_task(bench.fleet.join(ME, JoinRequest(ME, seen_tag="run1")))
        await asyncio.sleep(1)
        bench.uid = "a later job of that name"
        bench.fleet.forget(KEY)
        assert await refusal(poll) == 410
        assert await refusal(bench.fleet.report(ME, report())) == 410

    run_virtual(main())


def test_a_poll_of_an_incarnation_that_was_replaced_ends_at_once():
    async def main():
        bench = Bench()
        bench.publish()
        poll = asyncio.create_task(bench.fleet.join(ME, JoinRequest(ME, seen_tag="run1")))
        await asyncio.sleep(1)
        bench.publish(incarnations=(1, 0))
        assert await refusal(poll) == 410
        assert bench.clock.monotonic() == 1

    run_virtual(main())


def test_a_restarted_operator_lets_agents_wait_for_its_first_look_at_the_job():
    async def main():
        bench = Bench()
        waiting = asyncio.create_task(bench.fleet.report(ME, report()))
        await asyncio.sleep(0.5)
        assert bench.news()
        bench.publish()
        assert (await waiting).tag == "run1"
        late = Bench()
        assert await refusal(late.fleet.report(ME, report())) == 503

    run_virtual(main())


def test_progress_is_no_news_but_a_verdict_a_first_step_and_a_checkpoint_are():
    async def main():
        bench = Bench()
        bench.publish()
        told = [
            (report(ranks=[rank()]), True),
            (report(ranks=[rank()]), False),
            (report(ranks=[rank(step=1)]), True),
            (report(ranks=[rank(step=2, loss=1.0, silent_s=0.1)]), False),
            (report(ranks=[rank(step=3)], inventory=[CheckpointRecord(3, 1, "storage")]), True),
            (report(ranks=[rank(step=4)], inventory=[CheckpointRecord(3, 1, "storage")]), False),
            (report(ranks=[rank(step=4)], next_store=StoreAddress("h", 1)), True),
            (report(ranks=[rank(step=4, state=RankState.STOPPED)], next_store=StoreAddress("h", 1)), True),
            (report(ranks=[rank(step=4)], verdict=verdict()), True),
            (report(ranks=[rank(step=4)], verdict=verdict(age_s=1)), True),  # the store is gone from the offer
            (report(ranks=[rank(step=4)], verdict=verdict(age_s=2)), False),
        ]
        for message, expected in told[:9]:
            await bench.fleet.report(ME, message)
            assert bench.news() == expected, message
        await bench.fleet.report(ME, told[10][0])
        assert not bench.news()
        assert bench.fleet.checkpoint(KEY).step == 3

    run_virtual(main())


def test_the_first_verdict_of_a_round_stays_and_a_new_round_clears_it():
    async def main():
        bench = Bench()
        bench.publish()
        await bench.fleet.report(ME, report(verdict=verdict(age_s=0.25)))
        await asyncio.sleep(1)
        await bench.fleet.report(ME, report(verdict=Verdict(1, Cause.HANG, 1, "later")))
        record = bench.fleet.agents(KEY, [0, 0])[0]
        assert record.verdict.message == "died"
        assert record.verdict_age_s == pytest.approx(1.25)
        await bench.fleet.report(ME, report(round=2))
        record = bench.fleet.agents(KEY, [0, 0])[0]
        assert (record.round, record.verdict) == (2, None)

    run_virtual(main())


def test_a_round_that_an_agent_opened_grows_old_though_the_agent_says_nothing_more():
    async def main():
        bench = Bench()
        bench.publish()
        opened = Granted(2, StoreAddress("10.0.0.1", 1900), verdict(), age_s=0.5)
        await bench.fleet.report(ME, report(round=2, minor=1, granted=[opened]))
        await asyncio.sleep(3)
        (told,) = bench.fleet.agents(KEY, [0, 0])[0].granted
        assert told.age_s == pytest.approx(3.5)

    run_virtual(main())


def test_a_report_of_an_older_round_changes_nothing():
    async def main():
        bench = Bench()
        bench.publish(round=2)
        await bench.fleet.report(ME, report(round=2, resumed_step=7))
        answer = await bench.fleet.report(
            ME, report(round=1, done=True, verdict=verdict(), inventory=[CheckpointRecord(99, 1, "storage")])
        )
        record = bench.fleet.agents(KEY, [0, 0])[0]
        assert answer.tag == "run2"
        assert (record.round, record.done, record.verdict, record.resumed_step) == (2, False, None, 7)
        assert bench.fleet.checkpoint(KEY) is None

    run_virtual(main())


@pytest.mark.parametrize("verb", ["join", "report"])
def test_an_agent_that_has_ended_its_round_has_a_say_on_the_next_store_only(verb):
    async def main():
        bench = Bench()
        bench.publish()
        await bench.fleet.report(ME, report(resumed_step=7, verdict=verdict()))
        bench.news()
        bench.publish(round=2, state=DirectiveState.HOLD)
        store = StoreAddress("10.0.0.1", 4000)
        if verb == "join":
            await bench.fleet.join(ME, JoinRequest(ME, next_store=store))
        else:
            await bench.fleet.report(ME, report(round=0, next_store=store))
        assert bench.news()
        record = bench.fleet.agents(KEY, [0, 0])[0]
        assert (record.next_store, record.round, record.resumed_step) == (store, 1, 7)
        assert record.verdict is not None
        await bench.fleet.report(ME, report(round=0, next_store=store))
        assert not bench.news()

    run_virtual(main())


def test_a_checkpoint_of_a_newer_round_counts_more_than_a_later_step_of_an_older_one():
    async def main():
        bench = Bench()
        bench.publish()
        await bench.fleet.report(ME, report(inventory=[CheckpointRecord(50, 1, "storage")]))
        await bench.fleet.report(ME, report(round=2, inventory=[CheckpointRecord(45, 2, "storage")]))
        await bench.fleet.report(ME, report(round=2, inventory=[CheckpointRecord(60, 2, "storage", error="full")]))
        assert (bench.fleet.checkpoint(KEY).round, bench.fleet.checkpoint(KEY).step) == (2, 45)

    run_virtual(main())


def test_an_agent_waits_while_its_leader_has_read_a_status_from_before_the_first_pod():
    async def main():
        bench = Bench()
        bench.publish(round=0, incarnations=())
        assert await refusal(bench.fleet.report(ME, report())) == 503
        bench.publish(round=0, incarnations=(0, 0))
        await bench.fleet.report(ME, report())

    run_virtual(main())


def test_how_long_an_agent_has_gone_unanswered_counts_from_its_last_answer_but_not_from_the_word_that_it_is_stale():
    async def main():
        bench = Bench()
        bench.publish(round=1)
        clock, unanswered = bench.clock, lambda: bench.fleet.unanswered_s(KEY, ME.pod_uid)
        assert unanswered() == float("inf")
        await bench.fleet.report(ME, report())
        await asyncio.sleep(3)
        assert unanswered() == 3
        began = clock.monotonic()
        await bench.fleet.join(ME, JoinRequest(ME, seen_tag="run1"))  # which is answered at its end
        assert (clock.monotonic() - began, unanswered()) == (8, 0)
        poll = asyncio.create_task(bench.fleet.join(ME, JoinRequest(ME, seen_tag="run1")))
        await asyncio.sleep(2)
        bench.publish(round=2, incarnations=(1, 0))
        assert await refusal(poll) == 410
        assert await refusal(bench.fleet.report(ME, report())) == 410
        await asyncio.sleep(5)
        assert unanswered() == 7  # it was heard when it began to poll

    run_virtual(main())


def test_a_broken_poll_asks_for_a_look_at_the_job():
    async def main():
        bench = Bench()
        bench.publish()
        poll = asyncio.create_task(bench.fleet.join(ME, JoinRequest(ME, seen_tag="run1")))
        await asyncio.sleep(1)
        assert bench.fleet.agents(KEY, [0, 0])[0].joined
        bench.news()
        poll.cancel()
        await asyncio.wait([poll])
        assert bench.news()
        await asyncio.sleep(10)
        assert not bench.fleet.agents(KEY, [0, 0])[0].joined

    run_virtual(main())


def test_the_time_from_a_verdict_to_the_next_round_is_measured():
    async def main():
        bench = Bench()
        bench.publish()
        await bench.fleet.report(ME, report(verdict=verdict(age_s=5)))
        await asyncio.sleep(0.25)
        bench.publish(round=2)
        await bench.fleet.report(ME, report(round=2))
        assert bench.decided == [0.25]
        assert bench.fleet.agents(KEY, [0, 0])[0].clock == {"decide": 0.25}

    run_virtual(main())


def test_people_see_ranks_and_events():
    async def main():
        bench = Bench()
        bench.publish()
        await bench.fleet.report(ME, report(ranks=[rank(step=3)], events=[{"reason": "Saved", "message": "step 3"}]))
        view = bench.fleet.view(KEY)
        assert view["slots"][0]["ranks"][0].step == 3
        assert view["events"][0]["reason"] == "Saved"
        assert bench.fleet.view(("space", "other")) is None

    run_virtual(main())


def test_agents_of_all_jobs_together_report_at_a_bounded_rate():
    async def main():
        bench = Bench()
        many = 8000
        bench.publish(incarnations=[0] * many)
        for slot in range(many):
            me = replace(ME, slot=slot)
            answer = await bench.fleet.report(me, Report(me, round=1))
        assert answer.report_interval_s == 0.5  # they were counted when the first one came
        await asyncio.sleep(1)
        answer = await bench.fleet.report(ME, report())
        assert (answer.report_interval_s, answer.tag) == (20, "run1")
        assert (await bench.fleet.join(ME, JoinRequest(ME, round=1))).report_interval_s == 20
        assert bench.fleet.report_interval_s == 20
        await asyncio.sleep(30)
        assert (await bench.fleet.report(ME, report())).report_interval_s == 0.5  # the others have gone

    run_virtual(main())


def test_what_a_pods_ranks_run_is_news_once_and_is_kept_for_reports_that_do_not_repeat_it():
    async def main():
        bench = Bench()
        bench.publish(round=0, state=DirectiveState.WAIT)
        await bench.fleet.report(ME, report(round=0))
        bench.news()
        told = {"torch": "2.13.0"}
        for software, expected in ((told, True), ({}, False), ({"torch": "2.15.0"}, True)):
            await bench.fleet.report(ME, report(round=0, software=software))
            assert bench.news() == expected
            assert bench.fleet.agents(KEY, (0, 0))[0].software == (software or told)

    run_virtual(main())


def test_a_join_tells_what_a_pods_ranks_run():
    async def main():
        bench = Bench()
        bench.publish()
        await bench.fleet.join(ME, JoinRequest(ME, software={"torch": "2.13.0"}))
        assert bench.fleet.agents(KEY, (0, 0))[0].software == {"torch": "2.13.0"}

    run_virtual(main())


def test_that_a_pod_is_warm_by_now_is_news():
    async def main():
        bench = Bench()
        bench.publish(round=0, state=DirectiveState.WAIT)
        for warming, expected in ((True, True), (True, False), (False, True), (False, False)):
            await bench.fleet.report(ME, report(round=0, warming=warming))
            assert bench.news() == expected
            assert bench.fleet.agents(KEY, (0, 0))[0].warming == warming

    run_virtual(main())


def test_news_of_one_in_a_crowd_wait_for_the_others_but_a_failure_does_not():
    async def main():
        bench = Bench()
        await bench.crowd(1000)
        await bench.fleet.report(ME, report(done=True))
        (wait_s,) = bench.marks
        assert 0 < wait_s < bench.fleet.settings.progress_s
        await bench.fleet.report(ME, report(verdict=verdict()))
        assert bench.news()

    run_virtual(main())


def test_progress_of_a_crowd_is_looked_at_more_seldom():
    async def main():
        bench = Bench()
        await bench.crowd(1)
        await bench.fleet.report(ME, report())
        assert bench.marks == [bench.fleet.settings.progress_s]
        await bench.crowd(4000)
        await bench.fleet.report(ME, report())
        assert bench.fleet.settings.progress_s < bench.marks[0] < 5

    run_virtual(main())


def test_polls_of_a_crowd_are_held_longer_and_do_not_end_together():
    async def main():
        bench = Bench()
        crowd = await bench.crowd(3000)
        await asyncio.sleep(1)
        ended = []

        async def poll(one):
            await bench.fleet.join(one, JoinRequest(one, round=1, seen_tag="run1"))
            ended.append(bench.clock.monotonic() - 1)

        await asyncio.gather(*map(poll, crowd))
        assert 7.5 <= min(ended) < 8
        assert max(ended) == 15  # agents give up after 40
        in_each_second = [sum(second <= at < second + 1 for at in ended) for second in range(8, 15)]
        assert max(in_each_second) < 1.1 * len(crowd) / 7.5

    run_virtual(main())


def test_in_a_crowd_only_what_decides_something_is_looked_at_at_once():
    async def main():
        bench = Bench()
        crowd = await bench.crowd(CROWD, round=2)

        async def at_once(slot, **fields):
            await bench.report_of(crowd[slot], round=2, **fields)
            assert bench.marks, "it is news at any rate"
            return bench.news()

        assert not await at_once(1, verdict=replace(verdict(round=2), cascade=True))
        assert not await at_once(2, verdict=verdict(round=1))
        assert await at_once(3, verdict=verdict(round=2))
        assert await at_once(4, store_lost=True)
        assert await at_once(5, draining_s=20.0)

    run_virtual(main())


def test_a_failed_save_is_told_once_by_the_rank_whose_own_part_of_it_failed():
    async def main():
        bench = Bench()
        bench.publish()
        other = CheckpointRecord(50, 1, "storage", error="the shard of another rank could not be stored", cascade=True)
        await bench.fleet.report(ME, report(inventory=[other]))
        assert (bench.told, bench.fleet.failed_save(KEY)) == ([], None)
        own = CheckpointRecord(50, 1, "storage", error="No space left on device")
        await bench.fleet.report(ME, report(inventory=[own]))
        assert bench.told == [("CheckpointFailed", "No space left on device")]
        assert bench.fleet.failed_save(KEY) == SaveFailed(50, 1, "No space left on device")
        await bench.fleet.report(ME, report(inventory=[replace(own, step=40)]))
        assert bench.fleet.failed_save(KEY).step == 50

    run_virtual(main())


def test_what_an_upload_waits_for_grows_older_between_two_reports():
    async def main():
        bench = Bench()
        bench.publish()
        await bench.fleet.report(ME, report(upload=UploadReport(0, 50, "/checkpoints", 10.0)))
        await asyncio.sleep(3)
        agent = bench.fleet.agents(KEY, (0, 0))[0]
        assert agent.upload.still_s == pytest.approx(13.0)
        await bench.fleet.report(ME, report(nothing_saved=True, saved=True))
        agent = bench.fleet.agents(KEY, (0, 0))[0]
        assert (agent.upload, agent.nothing_saved) == (None, True)

    run_virtual(main())
