"""The metrics of single jobs as text for Prometheus.

The client library does not write them: with ten thousand jobs a scrape has several hundred thousand lines, and most of
them have not changed since the last one. So the lines of a job are kept until its status changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from trainmaster_operator.control.fleet import Fleet
from trainmaster_operator.runtime.cache.cache_records import JobRecord
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.observability import job_metric_values
from trainmaster_operator.runtime.observability.job_metric_table import FAMILIES, STATE, Family
from trainmaster_operator.runtime.observability.job_metric_values import Sample

FINISHED_S = 6 * 3600.0  # Seconds after its end for which a job still has metrics.

CHUNK = 200
"""Number of jobs after which other tasks run."""

_BY_NAME = {family.name: family for family in FAMILIES}
_PLACES = {family.name: place for place, family in enumerate(STATE)}
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True)
class _Kept:
    """The lines of one job that depend only on its record, by family of STATE."""

    record: JobRecord
    lines: tuple[str, ...]
    ended_at: float | None


class JobMetrics:
    """Renders the metrics of jobs. `finished_s`: seconds after its end for which a job has metrics."""

    def __init__(self, fleet: Fleet, finished_s: float = FINISHED_S) -> None:
        self._fleet = fleet
        self._finished_s = finished_s
        self._kept: dict[JobKey, _Kept] = {}

    def render(self, records: Iterable[JobRecord], now: float) -> bytes:
        """Return the text of all families that have a series. `now`: seconds since 1970."""
        page = _Page()
        for record in records:
            self._add(page, record, now)
        return self._end(page)

    async def collect(self, records: Sequence[JobRecord], now: float) -> bytes:
        """Return the same text as `render`, and let other tasks run meanwhile: with ten thousand jobs it takes a
        while."""
        page = _Page()
        for begin in range(0, len(records), CHUNK):
            for record in records[begin : begin + CHUNK]:
                self._add(page, record, now)
            await asyncio.sleep(0)
        return self._end(page)

    def _add(self, page: _Page, record: JobRecord, now: float) -> None:
        known = self._kept.get(record.key)
        if known is None or known.record is not record:
            known = _keep(record)
        page.kept[record.key] = known
        if known.ended_at is not None and now - known.ended_at >= self._finished_s:
            return
        for column, lines in zip(page.fixed, known.lines, strict=True):
            column.append(lines)
        who = _who(record.key)
        for name, values, number in self._moving(record, now):
            begin, end = _around(name, values)
            page.columns[name].append(f"{begin}{who}{end}{_shown(number)}")

    def _end(self, page: _Page) -> bytes:
        self._kept = page.kept  # Lines of jobs that are gone are dropped.
        return "".join(part for family in FAMILIES for part in _text(family, page.columns[family.name])).encode()

    def _moving(self, record: JobRecord, now: float) -> Iterator[Sample]:
        """Yield the samples that depend on the time or on reports of agents."""
        if record.job is None:
            return
        yield from job_metric_values.of_wait(record, now)
        if job_metric_values.runs(record.status):
            usage, reports = self._fleet.usage(record.key), self._fleet.reports(record.key)
            yield from job_metric_values.of_running(record, usage, reports, now)


class _Page:
    """One scrape: the lines of each family."""

    def __init__(self) -> None:
        self.kept: dict[JobKey, _Kept] = {}
        self.columns: dict[str, list[str]] = {family.name: [] for family in FAMILIES}
        self.fixed = [self.columns[family.name] for family in STATE]


def _keep(record: JobRecord) -> _Kept:
    lines: list[list[str]] = [[] for _ in STATE]
    who = _who(record.key)
    for name, values, number in job_metric_values.of_state(record):
        begin, end = _around(name, values)
        lines[_PLACES[name]].append(f"{begin}{who}{end}{_shown(number)}")
    ended_at = job_metric_values.ended_at(record.status) if record.job is not None else None
    return _Kept(record, tuple(map("".join, lines)), ended_at)


def _who(key: JobKey) -> str:
    """Return the labels that name the job. Names of Kubernetes need no escapes."""
    return f'{{namespace="{key.namespace}",job="{key.name}"'


@lru_cache(maxsize=4096)
def _around(name: str, values: tuple[str, ...]) -> tuple[str, str]:
    """Return what is before and after the namespace and the name of the job in a line."""
    family = _BY_NAME[name]
    more = "".join(
        f',{label}="{value.translate(_ESCAPES)}"' for label, value in zip(family.labels, values, strict=True)
    )
    return family.full_name, f"{more}}} "


def _shown(number: float) -> str:
    if number - number == 0:  # Neither infinite nor NaN.
        return f"{number!r}\n"
    return "NaN\n" if number != number else "+Inf\n" if number > 0 else "-Inf\n"


def _text(family: Family, lines: list[str]) -> Iterable[str]:
    if not any(lines):
        return ()
    words = family.text.replace("\\", r"\\")
    return (f"# HELP {family.full_name} {words}\n# TYPE {family.full_name} {family.kind}\n", *lines)
