"""docs/metrics.md, made from the operator's registry and the table of the metrics of single jobs:
`python -m docs.generate.metrics_page FILE`."""

from __future__ import annotations

import argparse
import difflib
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry

from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.runtime.observability.job_metric_table import (
    FAMILIES,
    MOST_RUNNING_SERIES,
    MOST_SERIES,
    Family,
)
from trainmaster_operator.runtime.observability.operator_metrics_advice import ADVICE
from trainmaster_operator.runtime.operator import Operator
from trainmaster_operator.runtime.operator_settings import Settings
from trainmaster_operator.runtime.virtual_clock import VirtualClock

_HEAD = f"""# Metrics of the operator

<!-- Made from the operator's metrics by `make generate`. Don't edit. -->

Each replica of the operator serves its own metrics at `https://<pod>:8444/metrics`, to those who may read them:
[monitoring.md](monitoring.md) says how to scrape them. With `metrics.secure=false`, and for `trainmaster run --port`,
they are at `http://<address>:<port>/metrics` for everybody.

Labels are bounded: there are no labels for pods or ranks. Only the leader exports metrics of jobs, so a sum over
replicas counts each job once. Each replica exports the counters and histograms of its own work, so sum them too. A
counter has all of its known label values from the start, at 0, so that `increase()` sees the first failure.

The usual metrics of a process (`process_cpu_seconds_total`, `process_resident_memory_bytes`, ...) are there as well.

## Of single jobs

These have the labels `namespace` and `job`, which name the training job: scrape with `honor_labels: true`. A job has
at most {MOST_SERIES} series, also one that never started, and at most {MOST_RUNNING_SERIES} more while it runs
(phases Starting, Running, Recovering, Resizing, Suspending). After the end of a job its metrics are kept for
`metrics.finishedSeconds` (6 hours), but not longer than the job exists. With `metrics.jobs=false` none of them is
exported. Those whose source is the status do not change when another replica leads.

{{columns}}
"""

_COLUMNS = """| metric | type | labels | unit | source | what it tells | what to do with it |
| --- | --- | --- | --- | --- | --- | --- |
"""

_SECOND = """
## Of the operator

Their source is the operator itself.

"""


def render() -> str:
    """The file's text."""
    jobs = (_row(family) for family in FAMILIES)
    rows = sorted(_rows(_registry()))
    head = _HEAD.replace("{columns}\n", _COLUMNS)
    return head + "".join(map(_line, jobs)) + _SECOND + _COLUMNS + "".join(map(_line, rows))


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _row(family: Family) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in ("namespace", "job", *family.labels))
    return f"`{family.full_name}`", family.kind, labels, family.unit, family.source, family.text, family.advice


def _registry() -> CollectorRegistry:
    settings = Settings(operator_url="", identity="")
    return Operator(MemoryCluster(), VirtualClock(), random.Random(0), settings).metrics.registry


def _rows(registry: CollectorRegistry) -> Iterator[tuple[str, ...]]:
    # The registry has no public way to ask for label names of metrics that nothing was counted with yet.
    labels = {
        collector._name: collector._labelnames  # type: ignore[attr-defined]
        for collector in registry._collector_to_names
        if hasattr(collector, "_labelnames")
    }
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        names: Iterable[str] = labels.get(family.name) or getattr(family, "_labelnames", None) or ()
        told = ", ".join(f"`{label}`" for label in names)
        yield f"`{name}`", family.type, told, _unit(name), "operator", family.documentation, ADVICE[name]


def _unit(name: str) -> str:
    base = name.removesuffix("_total")
    return next((unit for unit in ("seconds", "bytes", "ratio") if base.endswith(f"_{unit}")), "1")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.generate.metrics_page", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 with a diff when it is stale")
    options = parser.parse_args(arguments)
    path: Path = options.file
    text = render()
    if not options.check:
        path.write_text(text)
        return 0
    current = path.read_text() if path.exists() else ""
    if current == text:
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(current.splitlines(keepends=True), text.splitlines(keepends=True), str(path), "registry")
    )
    sys.stderr.write(f"{path} is stale: run `make generate`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
