"""What a job's pods have used: counters that never fall, gauges of those that there are."""

from __future__ import annotations

from dataclasses import replace

from tests.control.test_fleet import KEY, ME, Bench, rank, report
from trainmaster.contract.wire import CheckpointRecord, Identity, Report, Usage, decode, encode
from trainmaster_operator.control.job_usage_and_mfu import JobUsage, UsageSum
from trainmaster_operator.runtime.virtual_clock import run_virtual


def told(usage: Usage | None, **fields: object) -> Report:
    return Report(Identity("", "", "", "", 0, 0, ""), round=1, usage=usage, **fields)  # type: ignore[arg-type]


def begun(*pods: str) -> UsageSum:
    """The sum after a first report of each pod, whose agent has used nothing yet."""
    used = UsageSum()
    for pod in pods:
        used.take(pod, told(Usage(0.0, 0, 0)))
    return used


def test_pods_are_summed_and_the_newest_word_of_each_counts() -> None:
    used = begun("a", "b")
    used.take("a", told(Usage(1.0, 10, 100)))
    used.take("a", told(Usage(2.0, 20, 200)))
    used.take("b", told(Usage(5.0, 50, 500)))
    assert used.total([]).usage == Usage(7.0, 70, 700)


def test_what_a_pod_used_that_is_gone_stays_and_its_accelerators_do_not() -> None:
    used = begun("a", "b")
    used.take("a", told(Usage(2.0, 20, 200, 0.2, 8)))
    used.take("b", told(Usage(5.0, 50, 500, 0.8, 16)))
    assert used.total([]).usage == Usage(7.0, 70, 700, 0.5, 24)
    used.keep({"b"})
    assert used.total([]).usage == Usage(7.0, 70, 700, 0.8, 16)
    used.take("c", told(Usage(1.0, 1, 1)))
    assert used.total([]).usage == Usage(7.0, 70, 700, 0.8, 16), "c is heard for the first time"
    used.take("c", told(Usage(2.0, 2, 2)))
    assert used.total([]).usage == Usage(8.0, 71, 701, 0.8, 16)


def test_the_past_of_pods_that_a_new_leader_hears_one_after_the_other_is_no_burst() -> None:
    """Prometheus would show a job of a thousand old pods as millions of busy cores for minutes."""
    used = UsageSum()
    used.take("a", told(Usage(864000.0, 10**12, 10**12)))
    assert used.total([]).usage == Usage(0.0, 0, 0)
    used.take("b", told(Usage(864000.0, 10**12, 10**12)))
    assert used.total([]).usage == Usage(0.0, 0, 0)
    used.take("a", told(Usage(864008.0, 10**12 + 5, 10**12 + 6)))
    assert used.total([]).usage == Usage(8.0, 5, 6)
    used.keep({"b"})
    assert used.total([]).usage == Usage(8.0, 5, 6)


def test_the_end_of_a_pod_lowers_the_sum_by_not_even_the_last_bit() -> None:
    used = begun("a", "b", "c")
    for pod, cpu_s in (("a", 0.1), ("b", 0.2), ("c", 0.3)):
        used.take(pod, told(Usage(cpu_s)))
    before = used.total([]).usage.cpu_s
    used.keep({"a"})
    assert used.total([]).usage.cpu_s == before == 0.6


def test_an_agent_that_begins_again_in_its_pod_takes_nothing_away() -> None:
    used = begun("a")
    used.take("a", told(Usage(9.0, 90, 900)))
    used.take("a", told(Usage(1.0, 10, 100)))
    assert used.total([]).usage == Usage(10.0, 100, 1000)


def test_what_nobody_tells_is_not_zero() -> None:
    used = UsageSum()
    used.take("a", told(None))
    assert used.total([]) == JobUsage()
    used.take("b", told(Usage(3.0)))
    used.take("b", told(Usage(6.0)))
    assert used.total([]).usage == Usage(3.0)


def test_the_time_of_the_newest_save_and_the_mean_mfu_are_told() -> None:
    used = UsageSum()
    used.take("a", told(None, inventory=[CheckpointRecord(1, 1, "storage", "x", seconds=4.0)]))
    used.take("a", told(None, inventory=[CheckpointRecord(2, 1, "storage", error="full")]))
    ranks = [rank(mfu=0.4), rank(mfu=0.2), rank()]
    total = used.total([told(None, ranks=ranks)])
    assert (total.save_s, total.mfu) == (4.0, (0.4 + 0.2) / 2)


def test_the_fleet_keeps_what_replaced_pods_have_used() -> None:
    async def main() -> None:
        bench = Bench()
        bench.publish()
        await bench.fleet.report(ME, report(usage=Usage(0.0, 0, 0)))
        await bench.fleet.report(ME, report(usage=Usage(4.0, 40, 400)))
        assert bench.fleet.usage(KEY).usage == Usage(4.0, 40, 400)
        bench.publish(round=2, incarnations=(1, 0))
        assert bench.fleet.usage(KEY).usage == Usage(4.0, 40, 400)
        following = replace(ME, incarnation=1, pod_uid="other")
        await bench.report_of(following, round=2, usage=Usage(0.0, 0, 0))
        await bench.report_of(following, round=2, usage=Usage(1.0, 10, 100))
        assert bench.fleet.usage(KEY).usage == Usage(5.0, 50, 500)
        bench.fleet.forget(KEY)
        assert bench.fleet.usage(KEY) == JobUsage()

    run_virtual(main())


def test_usage_travels_and_an_older_agent_tells_none() -> None:
    sent = replace(report(), usage=Usage(1.5, 10, None, 0.25, 7))
    assert decode(Report, encode(sent)).usage == sent.usage
    assert decode(Report, encode(report()).replace(b'"usage":null,', b"")).usage is None
