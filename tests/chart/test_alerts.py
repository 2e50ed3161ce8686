from __future__ import annotations

import yaml

from charts.generate import CHART
from tests.chart.rendering import EVERYTHING, only, render


def test_the_rules_reach_prometheus_as_they_stand_in_the_file() -> None:
    """What they ask for, and when they fire, is tried in tests/dashboards."""
    written = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    alerts = {rule["alert"]: rule for group in written for rule in group["rules"]}
    groups = only(render(EVERYTHING), "PrometheusRule")["spec"]["groups"]
    assert {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule} == alerts
