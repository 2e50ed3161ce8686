"""The metrics of single jobs as text for Prometheus.

They are written here and not by the client library: with ten thousand jobs a scrape has several hundred thousand lines,
and most of them are what they were at the last one. So the lines of a job are kept until its status changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trainmaster_operator.control.fleet import Fleet
from trainmaster_operator.runtime import job_samples
from trainmaster_operator.runtime.informer import JobKey
from trainmaster_operator.runtime.job_families import FAMILIES, LIVE, STATE, Family
from trainmaster_operator.runtime.job_samples import Sample
from trainmaster_operator.runtime.records import JobRecord

FINISHED_S = 6 * 3600.0  # for so long after its end a job is still told of

_BY_NAME = {family.name: family for family in FAMILIES}
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True)
class _Kept:
    """The lines of one job that its record alone decides, by family of STATE."""

    record: JobRecord
    lines: tuple[str, ...]
    ended_at: float | None


class JobMetrics:
    """`finished_s`: for how many seconds after its end a job is told of."""

    def __init__(self, fleet: Fleet, finished_s: float = FINISHED_S) -> None:
        self._fleet = fleet
        self._finished_s = finished_s
        self._kept: dict[JobKey, _Kept] = {}

    def render(self, records: Iterable[JobRecord], now: float) -> bytes:
        """The text of all families that have a series. `now`: seconds since 1970."""
        kept: dict[JobKey, _Kept] = {}
        columns: dict[str, list[str]] = {family.name: [] for family in FAMILIES}
        fixed = [columns[family.name] for family in STATE]
        for record in records:
            known = self._kept.get(record.key)
            if known is None or known.record is not record:
                known = _keep(record)
            kept[record.key] = known
            if known.ended_at is not None and now - known.ended_at >= self._finished_s:
                continue
            for column, lines in zip(fixed, known.lines, strict=True):
                column.append(lines)
            for sample in self._moving(record, now):
                columns[sample[0]].append(_line(record.key, sample))
        self._kept = kept  # nothing stays of a job that is gone
        return "".join(_text(family, columns[family.name]) for family in FAMILIES).encode()

    def _moving(self, record: JobRecord, now: float) -> Iterator[Sample]:
        """What depends on the time, or on what agents tell."""
        if record.job is None:
            return
        yield from job_samples.of_wait(record, now)
        if job_samples.runs(record.status):
            usage, reports = self._fleet.usage(record.key), self._fleet.reports(record.key)
            yield from job_samples.of_running(record, usage, reports, now)


def _keep(record: JobRecord) -> _Kept:
    lines: dict[str, list[str]] = {family.name: [] for family in STATE}
    for sample in job_samples.of_state(record):
        lines[sample[0]].append(_line(record.key, sample))
    ended_at = job_samples.ended_at(record.status) if record.job is not None else None
    return _Kept(record, tuple("".join(lines[family.name]) for family in STATE), ended_at)


def _line(key: JobKey, sample: Sample) -> str:
    name, values, number = sample
    family = _BY_NAME[name]
    more = "".join(
        f',{label}="{value.translate(_ESCAPES)}"' for label, value in zip(family.labels, values, strict=True)
    )
    return f'{family.full_name}{{namespace="{key.namespace}",job="{key.name}"{more}}} {_shown(number)}\n'


def _shown(number: float) -> str:
    if math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"


def _text(family: Family, lines: list[str]) -> str:
    body = "".join(lines)
    if not body:
        return ""
    words = family.text.replace("\\", r"\\")
    return f"# HELP {family.full_name} {words}\n# TYPE {family.full_name} {family.kind}\n{body}"


__all__ = ["FINISHED_S", "LIVE", "JobMetrics"]
