from __future__ import annotations

import re

import pytest
import yaml

from charts.generate import CHART, ROOT
from docs.generate import metrics_page
from tests.chart.rendering import EVERYTHING, only, render

TARGET = {"namespace", "pod", "service", "job", "instance"}
"""Labels that scraping adds."""

RECORDED = {
    rule["record"]: rule["expr"]
    for group in yaml.safe_load((CHART / "rules" / "recording.yaml").read_text())["groups"]
    for rule in group["rules"]
}
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


def test_a_plain_prometheus_that_scrapes_as_the_page_shows_has_the_labels_by_which_alerts_name_an_operator() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    shown = page.split("## With a plain Prometheus")[1].split("```")[1]
    (scrape,) = yaml.safe_load(shown)["scrape_configs"]
    of_operators = {"namespace", "pod"} & set(re.findall(r"\w+", " ".join(rule["expr"] for rule in ALERTS.values())))
    assert {one["target_label"] for one in scrape["relabel_configs"]} == of_operators == {"namespace", "pod"}
    assert scrape["honor_labels"], "the namespace of a training job is that of the job"


def test_the_rules_reach_prometheus_as_they_stand_in_the_file() -> None:
    groups = only(render(EVERYTHING), "PrometheusRule")["spec"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["alert"]: rule for rule in rules if "alert" in rule} == ALERTS
    assert {rule["record"]: rule["expr"] for rule in rules if "record" in rule} == RECORDED
    assert len({group["name"] for group in groups}) == len(groups)


@pytest.mark.parametrize("record", RECORDED)
def test_a_recording_rule_has_a_name_of_the_convention_and_asks_for_what_is_exported(record: str) -> None:
    assert re.fullmatch(r"trainmaster:[a-z_]+:[a-z]+(_\d+[mh])?", record)
    known = set(TARGET)
    for name, window in re.findall(r"(trainmaster[\w:]+)(?:\[(\w+)\])?", RECORDED[record]):
        assert name in EXPORTED or name in RECORDED
        known |= EXPORTED.get(name, set()) | {"category"}
        if window:
            assert record.endswith(f"_{window}")
    for grouping in re.findall(r"by \(([^)]*)\)", RECORDED[record]):
        assert set(re.split(r",\s*", grouping)) <= known


@pytest.mark.parametrize("record", RECORDED)
def test_a_recording_rule_uses_a_name_of_another_only_after_that(record: str) -> None:
    """Rules of a group are evaluated in order."""
    order = list(RECORDED)
    for name in re.findall(r"trainmaster:[\w:]+", RECORDED[record]):
        assert order.index(name) < order.index(record)
