"""What dashboards, alerts and recording rules ask Prometheus: their expressions, with variables filled in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from charts.generate import CHART

FOLDER = CHART / "files" / "dashboards"
RULES = (CHART / "files" / "alerts.yaml", CHART / "rules" / "recording.yaml")

Json = dict[str, Any]

VARIABLE = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")
ALL = ".*"


@dataclass(frozen=True)
class Chosen:
    """What a person has chosen on a dashboard: the values of its variables, and the time shown, in seconds."""

    variables: Mapping[str, str]
    range_s: float = 21600.0
    rate_interval_s: float = 240.0
    interval_s: float = 60.0
    """Between two points of a curve."""

    def fill(self, expr: str) -> str:
        """Put the values in place of the variables. Raises KeyError for a variable that there is none of."""
        values = {
            "__rate_interval": f"{self.rate_interval_s:.0f}s",
            "__interval": f"{self.interval_s * 1000:.0f}ms",
            "__range": f"{self.range_s:.0f}s",
            **self.variables,
        }
        return VARIABLE.sub(lambda found: values[found[1] or found[2]], expr)


def everything(**given: str) -> Chosen:
    """All namespaces, jobs and operators, except those given."""
    return Chosen({"namespace": ALL, "job": ALL, "pod": ALL, **given})


@dataclass(frozen=True)
class Asked:
    """One expression. `where` names it: file or dashboard, panel or rule, and the query's letter."""

    where: str
    expr: str
    panel: Json | None = None
    rule: Json | None = None


def dashboards() -> dict[str, Json]:
    """The dashboards of the chart by uid."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def panels(dashboard: Json) -> list[Json]:
    """The panels that show data."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def rules(file: Path) -> list[Json]:
    """The rules of a file; none if there is no such file."""
    if not file.exists():
        return []
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def of_panels() -> Iterator[Asked]:
    for uid, dashboard in dashboards().items():
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield Asked(f"{uid}: {panel['title']} ({target['refId']})", target["expr"], panel=panel)


def of_annotations() -> Iterator[Asked]:
    for uid, dashboard in dashboards().items():
        for annotation in dashboard["annotations"].get("list") or []:
            yield Asked(f"{uid}: annotation {annotation['name']}", annotation["expr"])


def of_rules() -> Iterator[Asked]:
    for file in RULES:
        for rule in rules(file):
            yield Asked(f"{file.name}: {rule.get('alert') or rule['record']}", rule["expr"], rule=rule)


@cache
def all_asked() -> tuple[Asked, ...]:
    """Every expression that the chart brings."""
    return (*of_panels(), *of_annotations(), *of_rules())
