from __future__ import annotations

import re

import pytest
import yaml

from charts.generate import CHART
from tests.chart.rendering import EVERYTHING, only, render
from trainmaster_operator.runtime import metrics_page

TARGET = {"namespace", "pod", "service", "job", "instance"}
"""Labels that scraping adds."""

ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
}


def _exported() -> dict[str, set[str]]:
    """Labels of each series that the operator exports."""
    series: dict[str, set[str]] = {}
    for line in metrics_page.render().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) < 4 or not cells[0].startswith("`"):
            continue
        name, labels = cells[0].strip("`"), set(re.findall(r"`(\w+)`", cells[2]))
        if cells[1] == "histogram":
            series |= {f"{name}_bucket": {*labels, "le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            series[name] = labels
    return series


EXPORTED = _exported()


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_asks_for_series_and_labels_that_the_operator_exports(alert: str) -> None:
    asked = re.findall(r"(trainmaster_\w+)(?:\{([^}]*)\})?", ALERTS[alert]["expr"])
    assert asked
    known = set(TARGET)
    for name, selector in asked:
        assert name in EXPORTED
        labels = EXPORTED[name]
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) <= labels | TARGET
        known |= labels
    for grouping in re.findall(r"by \(([^)]*)\)", ALERTS[alert]["expr"]):
        assert set(re.split(r",\s*", grouping)) <= known


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_speaks_of_labels_that_its_expression_keeps(alert: str) -> None:
    rule = ALERTS[alert]
    kept = set(re.split(r",\s*", ",".join(re.findall(r"by \(([^)]*)\)", rule["expr"]))))
    said = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert said <= kept


def test_the_rules_reach_prometheus_as_they_stand_in_the_file() -> None:
    groups = only(render(EVERYTHING), "PrometheusRule")["spec"]["groups"]
    assert {rule["alert"]: rule for group in groups for rule in group["rules"]} == ALERTS
