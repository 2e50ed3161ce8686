"""The benchmark of scrapes at toy size: it measures what the operator serves."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import scrape
from trainmaster_operator.runtime.observability.job_metric_table import FAMILIES, MOST_RUNNING_SERIES, MOST_SERIES
from trainmaster_operator.runtime.observability.job_metrics_page import JobMetrics
from trainmaster_operator.runtime.operator import Operator


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


def test_an_operator_that_leads_is_scraped_with_and_without_metrics_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[bytes] = []
    render = Operator.render_metrics

    def seen(operator: Operator) -> bytes:
        texts.append(render(operator))
        return texts[-1]

    monkeypatch.setattr(Operator, "render_metrics", seen)
    found = [scrape.measure_operator(20, 2, of_jobs=of_jobs) for of_jobs in (True, False)]
    assert [case.case for case in found] == [
        "20 jobs, operator with metrics of jobs",
        "20 jobs, operator without metrics of jobs",
    ]
    assert [len(case.samples) for case in found] == [2, 2]
    assert all(b"trainmaster_leader 1.0" in text for text in texts)
    assert [text.count(b"trainmaster_job_phase{") for text in texts] == [20, 20, 20, 0, 0, 0]
