"""The benchmark of scrapes at toy size: it measures what the operator serves."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from benchmarks import scrape
from trainmaster_operator.runtime.observability.job_families import FAMILIES, MOST_RUNNING_SERIES, MOST_SERIES
from trainmaster_operator.runtime.observability.job_metrics import JobMetrics


def test_a_few_jobs_are_scraped_by_the_first_and_by_later_scrapes() -> None:
    cases = {case.case: case for case in scrape.measure(20, 2)}
    assert [len(cases[f"20 jobs, {which} scrape"].samples) for which in ("first", "later")] == [2, 2]
    (series,) = cases["20 jobs, series"].samples
    assert 18 * 30 + 2 * 45 < series <= 20 * MOST_SERIES + 2 * MOST_RUNNING_SERIES


def test_the_jobs_that_are_measured_tell_what_real_ones_tell() -> None:
    text = JobMetrics(scrape.Agents()).render([scrape.record(n) for n in range(20)], scrape.NOW)  # type: ignore[arg-type]
    told = {sample.name for family in text_string_to_metric_families(text.decode()) for sample in family.samples}
    rare = {"trainmaster_job_straggler_slowdown"}
    assert told == {family.full_name for family in FAMILIES} - rare
