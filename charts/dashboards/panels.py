"""Builds panels in one style, so that a dashboard's file tells only what it shows.

A panel's number is its id in Grafana. It is written beside the panel and never used again for another one: links to a
panel, and alerts that people tie to it, stay right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models.common import DataSourceRef
from grafana_foundation_sdk.models.dashboard import (
    DashboardSpecialValueMapOptions,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    SpecialValueMap,
    SpecialValueMatch,
    Threshold,
    ThresholdsMode,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from charts.dashboards.colors import BLUE, GREEN, GREY, ORANGE, PLAIN, RED, YELLOW

SOURCE = "${datasource}"
NOTHING_SCRAPED = "No operator of Trainmaster is scraped"
NOBODY_LEADS = "Not known: no operator leads"
"""Only the leader tells of jobs and agents."""
NOTHING = "None"
LETTERS = "ABCDEFGH"
"""What Grafana calls the queries of a panel."""

WORKER_COLORS = {"desired": BLUE, "current": YELLOW, "ready": GREEN, "spare": GREY}
TIER_COLORS = {"storage": BLUE, "memory": GREEN}
WHAT_COLORS = {"container": BLUE, "process": GREEN, "device": ORANGE}
SUSPICION_COLORS = {"raised": ORANGE, "dropped": GREEN, "confirmed": RED}

RUNG_COLORS = {"inPlace": GREEN, "pod": YELLOW, "full": ORANGE, "shrink": RED, "free": BLUE}


@dataclass(frozen=True)
class Query:
    """`legend` names a series by its labels; in a table it is the title of the column."""

    expr: str
    legend: str = ""


Steps = Sequence[tuple[float | None, str]]
"""(from this value on, colour); the first has None."""

AXIS_WIDTH = 72
"""In pixels: room for a number with its unit."""
LEAST_AXIS = {"short": 1.0, "ops": 0.2, "reqps": 1.0}
"""How far an axis reaches at least, by its unit: the axis of a curve at 0 would end at 100, and the numbers of an axis
that ends at a hundredth have no room."""

GOODPUT: Steps = ((None, RED), (0.8, ORANGE), (0.9, YELLOW), (0.95, BLUE))
"""Never green: time in which a job is held, waits or hangs is not in it."""
FEW: Steps = ((None, PLAIN), (1, YELLOW), (5, RED))
"""Numbers of failures."""


def source() -> DataSourceRef:
    return DataSourceRef(type_val="prometheus", uid=SOURCE)


def _targets(queries: Sequence[Query], *, now: bool, rows: bool = False) -> list[prometheus.Dataquery]:
    """`now`: only the newest value is asked for. `rows`: the answer becomes rows of a table."""
    built = []
    for letter, query in zip(LETTERS, queries, strict=False):
        target = prometheus.Dataquery().expr(query.expr).ref_id(letter).datasource(source())
        target = target.instant() if now else target.range()
        target = target.format(PromQueryFormat.TABLE if rows else PromQueryFormat.TIME_SERIES)
        built.append(target.legend_format("" if rows else query.legend))
    return built


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    config = dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE)
    return config.steps([Threshold(value=value, color=color) for value, color in steps])


def _fixed(color: str) -> DynamicConfigValue:
    return DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})


def _unknown_number() -> SpecialValueMap:
    """A division by nothing is told as a dash."""
    result = ValueMappingResult(text="–", color="text", index=0)
    options = DashboardSpecialValueMapOptions(match=SpecialValueMatch.NA_N, result=result)
    return SpecialValueMap(options=options)


def number(
    id: int,
    title: str,
    description: str,
    queries: Query | Sequence[Query],
    *,
    unit: str,
    steps: Steps = ((None, PLAIN),),
    none: str = NOTHING_SCRAPED,
    decimals: int | None = None,
    span: int = 4,
    names: bool = False,
    colors: Mapping[str, str] | None = None,
) -> stat.Panel:
    """One big number. `none` stands there where no series is. `names`: the series' names stand there instead."""
    given = [queries] if isinstance(queries, Query) else queries
    reduce = common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)
    panel = (
        stat.Panel()
        .id(id)
        .title(title)
        .description(description)
        .datasource(source())
        .targets(_targets(given, now=True))
        .unit(unit)
        .thresholds(_thresholds(steps))
        .mappings([_unknown_number()])
        .reduce_options(reduce)
        .graph_mode(looks.BigValueGraphMode.NONE)
        .color_mode(looks.BigValueColorMode.BACKGROUND if names else looks.BigValueColorMode.VALUE)
        .text_mode(looks.BigValueTextMode.NAME if names else looks.BigValueTextMode.AUTO)
        .no_value(none)
        .height(4)
        .span(span)
    )
    if decimals is not None:
        panel = panel.decimals(decimals)
    for name, color in (colors or {}).items():
        panel = panel.override_by_name(name, [_fixed(color)])
    return panel


def curves(
    id: int,
    title: str,
    description: str,
    queries: Query | Sequence[Query],
    *,
    unit: str,
    span: int = 12,
    stacked: bool = False,
    colors: Mapping[str, str] | None = None,
    least: float | None = 0.0,
    most: float | None = None,
    decimals: int | None = None,
    steps: Steps = (),
    none: str = "No data in this time",
    events: bool = False,
    up_to: float | None = None,
    axis: str = "",
) -> timeseries.Panel:
    """Values over time. `stacked`: the series are parts of a whole. `events`: counts of what happens now and then.

    `up_to`: the axis reaches so far at least, so that a small value looks small. `axis`: what the axis counts.
    """
    given = [queries] if isinstance(queries, Query) else queries
    legend = (
        common.VizLegendOptions()
        .display_mode(looks.LegendDisplayMode.LIST)
        .placement(looks.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs([])
    )
    panel = (
        timeseries.Panel()
        .id(id)
        .title(title)
        .description(description)
        .datasource(source())
        .targets(_targets(given, now=False))
        .unit(unit)
        .no_value(none)
        # The line of a part without a height would be drawn around the part below it.
        .line_width(0 if stacked and not events else 1)
        # One width for all, so that a time is at one place in panels above each other.
        .axis_width(AXIS_WIDTH)
        .fill_opacity(60 if stacked else 8)
        .show_points(looks.VisibilityMode.AUTO)
        .legend(legend)
        # A name has one colour in all panels, whatever else they show.
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
        .tooltip(common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI).sort(looks.SortOrder.DESCENDING))
        .height(8)
        .span(span)
    )
    if events:
        panel = panel.draw_style(looks.GraphDrawStyle.BARS).fill_opacity(80)
    up_to = up_to or LEAST_AXIS.get(unit)
    if up_to is not None:
        panel = panel.axis_soft_max(up_to)
    if axis:
        panel = panel.axis_label(axis)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(looks.StackingMode.NORMAL).group("A"))
    if least is not None:
        panel = panel.min(least)
    if most is not None:
        panel = panel.max(most)
    if decimals is not None:
        panel = panel.decimals(decimals)
    if steps:
        panel = panel.thresholds(_thresholds(steps)).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(looks.GraphThresholdsStyleMode.DASHED)
        )
    named = [query.legend for query in given if "{{" not in query.legend]
    for name, color in {**dict(zip(named, (GREEN, BLUE, ORANGE), strict=False)), **(colors or {})}.items():
        panel = panel.override_by_name(name, [_fixed(color)])
    return panel


def bars(
    id: int,
    title: str,
    description: str,
    query: Query,
    *,
    unit: str,
    steps: Steps,
    most: float | None = None,
    span: int = 12,
    none: str = NOTHING,
    height: int = 8,
) -> bargauge.Panel:
    """One bar for each series, by its newest value. Its name is above it, where no name is too long."""
    panel = (
        bargauge.Panel()
        .id(id)
        .title(title)
        .description(description)
        .datasource(source())
        .targets(_targets([query], now=True))
        .unit(unit)
        .min(0)
        .thresholds(_thresholds(steps))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .orientation(looks.VizOrientation.HORIZONTAL)
        .display_mode(looks.BarGaugeDisplayMode.BASIC)
        .name_placement(looks.BarGaugeNamePlacement.TOP)
        .no_value(none)
        .height(height)
        .span(span)
    )
    return panel.max(most) if most is not None else panel


@dataclass(frozen=True)
class Column:
    """A column of a table: `label` of the series, or the value of a query (its letter). `color` marks by `steps`.

    `colors`: by the whole text. `patterns`: by the first regular expression that fits. `width`: in pixels; None:
    columns share what is left.
    """

    label: str
    title: str
    unit: str = ""
    steps: Steps = ()
    colors: Mapping[str, str] | None = None
    patterns: Mapping[str, str] | None = None
    link: str = ""
    decimals: int | None = None
    width: int | None = None


def rows(
    id: int,
    title: str,
    description: str,
    queries: Query | Sequence[Query],
    columns: Sequence[Column],
    *,
    span: int = 12,
    none: str = NOTHING,
    sort: str = "",
    height: int = 8,
    hide: Sequence[str] = (),
) -> table.Panel:
    """A table: the rows of several queries are joined by the labels that they share. `sort`: a column's title. `hide`:
    labels that are no columns."""
    given = [queries] if isinstance(queries, Query) else queries
    values = (
        ["Value"] if len(given) == 1 else [f"Value #{letter}" for letter, _ in zip("ABCDEFGH", given, strict=False)]
    )
    shown = {_field(column.label, len(given)): column for column in columns}
    hidden = {name: True for name in ("Time", *values, *hide) if name not in shown}
    organize = DataTransformerConfig(
        id_val="organize",
        options={
            "excludeByName": hidden,
            "indexByName": {name: place for place, name in enumerate(shown)},
            "renameByName": {name: column.title for name, column in shown.items()},
        },
    )
    merge = [DataTransformerConfig(id_val="merge", options={})] if len(given) > 1 else []
    panel = (
        table.Panel()
        .id(id)
        .title(title)
        .description(description)
        .datasource(source())
        .targets(_targets(given, now=True, rows=True))
        .unit("short")
        .no_value(none)
        .transformations([*merge, organize])
        .show_header(True)
        .cell_height(looks.TableCellHeight.SM)
        .height(height)
        .span(span)
    )
    if sort:
        descending = not sort.startswith("+")
        panel = panel.sort_by([common.TableSortByFieldState().display_name(sort.lstrip("+")).desc(descending)])
    for column in columns:
        properties = _of_column(column)
        if properties:
            panel = panel.override_by_name(column.title, properties)
    return panel


def _field(label: str, queries: int) -> str:
    if len(label) == 1:
        return "Value" if queries == 1 else f"Value #{label}"
    return label


def _of_column(column: Column) -> list[DynamicConfigValue]:
    properties = []
    if column.unit:
        properties.append(DynamicConfigValue(id_val="unit", value=column.unit))
        nothing = {"match": "null+nan", "result": {"text": "–", "color": "text", "index": 0}}
        properties.append(DynamicConfigValue(id_val="mappings", value=[{"type": "special", "options": nothing}]))
    if column.width is not None:
        properties.append(DynamicConfigValue(id_val="custom.width", value=column.width))
    if column.decimals is not None:
        properties.append(DynamicConfigValue(id_val="decimals", value=column.decimals))
    if column.steps:
        steps = [{"value": value, "color": color} for value, color in column.steps]
        properties.append(DynamicConfigValue(id_val="thresholds", value={"mode": "absolute", "steps": steps}))
    if column.colors:
        options = {name: {"color": color, "index": at} for at, (name, color) in enumerate(column.colors.items())}
        properties.append(DynamicConfigValue(id_val="mappings", value=[{"type": "value", "options": options}]))
    if column.patterns:
        mappings = [
            {"type": "regex", "options": {"pattern": f"/{pattern}/", "result": {"color": color, "index": at}}}
            for at, (pattern, color) in enumerate(column.patterns.items())
        ]
        properties.append(DynamicConfigValue(id_val="mappings", value=mappings))
    if column.steps or column.colors or column.patterns:
        properties.append(DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}))
    if column.link:
        link = {"title": "Open the dashboard of this job", "url": column.link}
        properties.append(DynamicConfigValue(id_val="links", value=[link]))
    return properties
