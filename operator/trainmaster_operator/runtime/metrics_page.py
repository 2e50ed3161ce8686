"""docs/metrics.md, made from the operator's registry: `python -m trainmaster_operator.runtime.metrics_page FILE`."""

from __future__ import annotations

import argparse
import difflib
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from trainmaster_operator.cluster.memory import MemoryCluster
from trainmaster_operator.runtime.clock import VirtualClock
from trainmaster_operator.runtime.operator import Operator, Settings

_HEAD = """<!-- Made from the operator's registry by `make generate`. Don't edit. -->

# Metrics of the operator

The operator serves these at `http://<pod>:8080/metrics`, each replica its own. Labels are bounded: nothing is told per
pod or per rank, and per job only the gauges `trainmaster_job_*` of jobs that run, which `--no-job-metrics` switches
off. Gauges about jobs come from the leader alone, so a sum over replicas counts each job once; counters and histograms
come from whoever did the work, so sum them too.

The usual metrics of a process (`process_cpu_seconds_total`, `process_resident_memory_bytes`, ...) are there as well.

| metric | type | labels | what it tells |
| --- | --- | --- | --- |
"""


def render() -> str:
    """The file's text."""
    rows = sorted(_rows(_registry()))
    return _HEAD + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _registry() -> CollectorRegistry:
    settings = Settings(operator_url="", identity="")
    return Operator(MemoryCluster(), VirtualClock(), random.Random(0), settings).metrics.registry


def _rows(registry: CollectorRegistry) -> Iterator[tuple[str, str, str, str]]:
    # The registry has no public way to ask for label names of metrics that nothing was counted with yet.
    labels = {
        collector._name: collector._labelnames  # type: ignore[attr-defined]
        for collector in registry._collector_to_names
        if hasattr(collector, "_labelnames")
    }
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        names: Iterable[str] = labels.get(family.name) or getattr(family, "_labelnames", None) or ()
        yield f"`{name}`", family.type, ", ".join(f"`{label}`" for label in names), _sentence(family)


def _sentence(family: Metric) -> str:
    return family.documentation.replace("|", "\\|")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainmaster_operator.runtime.metrics_page", description=__doc__)
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
