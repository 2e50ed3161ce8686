"""Builds what surrounds the panels: a dashboard with its variables, rows, annotations and links to the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableHide,
    VariableRefresh,
    VariableSort,
)

from charts.dashboards.colors import PINK
from charts.dashboards.panels import source
from charts.dashboards.promql import before


def variable_of_source() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def variable(name: str, label: str, series: str, *, many: bool, of: str = "") -> dashboard.QueryVariable:
    """The values of a label. `of`: the label, if it has another name. `many`: several values, or all."""
    built = (
        dashboard.QueryVariable(name)
        .label(label)
        .query(f"label_values({series}, {of or name})")
        .datasource(source())
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .hide(VariableHide.DONT_HIDE)
        .multi(many)
        .include_all(many)
    )
    # Also where no such label is: a Prometheus on a laptop knows of no namespaces of operators.
    return built.all_value(".*").current({"text": ["All"], "value": ["$__all"]}) if many else built


def annotation(name: str, expr: str, title: str, text: str, color: str) -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name(name)
        .datasource(source())
        .enable(True)
        .icon_color(color)
        .expr(expr)
        .title_format(title)
        .text_format(text)
        .step("")
    )


def took_over() -> dashboard.AnnotationQuery:
    """A mark where an operator begins to lead: another one, or the same after a restart.

    One that is back before its lease has ended goes on in the same epoch, maybe between two scrapes.
    """
    epoch, start = "trainmaster_leader_epoch", "process_start_time_seconds"
    leads = "and on (instance) trainmaster_leader == 1"
    expr = f"max({epoch}) > max({before(epoch)}) or max({start} {leads}) > max({before(start)} {leads})"
    return annotation("Operator began to lead", expr, "An operator began to lead", "the first, or another one", PINK)


def link_to_others() -> dashboard.DashboardLink:
    """A menu of all dashboards of Trainmaster; the time and the variables go along."""
    return (
        dashboard.DashboardLink("Trainmaster")
        .type(DashboardLinkType.DASHBOARDS)
        .tags(["trainmaster"])
        .as_dropdown(False)
        .include_vars(True)
        .keep_time(True)
    )


Panel = Any  # each builder of the SDK has a type of its own


def page(
    name: str,
    title: str,
    description: str,
    variables: Sequence[Any],
    content: Sequence[tuple[str, int, Sequence[Panel]]],
    annotations: Sequence[dashboard.AnnotationQuery] = (),
    hours: int = 6,
) -> Any:
    """A dashboard with the uid `trainmaster-NAME`. `content`: (title, id, panels) of each row."""
    built = (
        dashboard.Dashboard(title)
        .uid(f"trainmaster-{name}")
        .description(description)
        .tags(["trainmaster"])
        .editable()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time(f"now-{hours}h", "now")
        .timezone("browser")
        .variables([variable_of_source(), *variables])
        .link(link_to_others())
    )
    for query in annotations:
        built = built.annotation(query)
    for row, id, panels in content:
        built = built.with_row(dashboard.Row(row).id(id))
        for panel in panels:
            built = built.with_panel(panel)
    return built.build()
