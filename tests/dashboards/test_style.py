"""What Grafana's dashboard linter asks for, and what makes a panel understood at three in the morning."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from charts.dashboards import __main__ as dashboards_main
from charts.dashboards import operator_dashboard, signs
from charts.dashboards import panels as looks
from tests.dashboards.asking import VARIABLE, Asked, all_asked, dashboards, everything, of_panels, panels
from tests.dashboards.exported import labels_by_series
from trainmaster_operator.runtime.observability import job_metric_values
from trainmaster_operator.runtime.observability.job_metric_table import FAMILIES, STATUS

DASHBOARDS = dashboards()
PANELS = [(uid, panel) for uid, dashboard in DASHBOARDS.items() for panel in panels(dashboard)]

UNITS = {"short", "none", "percentunit", "s", "bytes", "Bps", "ops", "reqps"}
"""Grafana's names of units that our panels need. It takes an unknown one for a suffix, and says nothing."""

JUDGED = {
    "trainmaster-fleet 1",  # it counts each job that has a sign of a lasting problem
    "trainmaster-fleet 2",
    "trainmaster-fleet 6",
    "trainmaster-operator 1",
    "trainmaster-operator 3",
    "trainmaster-operator 5",
    "trainmaster-operator 6",
}
"""Numbers with a value than which there is no better one."""

TWO_THINGS = {"create", "delete"}
"""Names that mean a call of the API server in one panel and a kind of writes in another."""

SCRAPED = {"namespace", "pod", "instance", "le"}
"""Labels that a scrape of the operator adds; le: of histograms."""


def named(pair: tuple[str, dict[str, Any]]) -> str:
    return f"{pair[0]}-{pair[1]['id']}"


EXPORTED = labels_by_series()


def parse(asked: Asked) -> Any:
    return promql_parser.parse(everything().fill(asked.expr))


def selectors(node: Any) -> list[Any]:
    """All selectors of series in a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        return [node]
    parts = [getattr(node, name, None) for name in ("expr", "lhs", "rhs", "vector_selector", "param")]
    arguments = list(getattr(node, "args", None) or [])
    return [found for part in [*parts, *arguments] if part is not None for found in selectors(part)]


def test_no_dashboard_is_stale() -> None:
    assert dashboards_main.main(["--check"]) == 0


def test_a_stale_dashboard_and_one_too_many_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dashboards_main.main([], tmp_path) == 0
    assert dashboards_main.main(["--check"], tmp_path) == 0
    changed = tmp_path / "trainmaster-job.json"
    changed.write_text(changed.read_text().replace('"title": "Network"', '"title": "Nets"'))
    (tmp_path / "trainmaster-old.json").write_text("{}\n")
    assert dashboards_main.main(["--check"], tmp_path) == 1
    told = capsys.readouterr()
    assert [line.split() for line in told.out.splitlines() if "Nets" in line] == [["-", '"title":', '"Nets",']]
    assert told.err.splitlines() == [
        "trainmaster-job.json is stale: run `make generate`",
        "trainmaster-old.json is stale: run `make generate`",
    ]
    assert dashboards_main.main([], tmp_path) == 0
    assert sorted(path.name for path in tmp_path.glob("*.json")) == sorted(f"{uid}.json" for uid in DASHBOARDS)


def test_there_are_the_four_dashboards() -> None:
    assert sorted(DASHBOARDS) == [f"trainmaster-{name}" for name in ("fleet", "job", "operator", "recovery")]
    for uid, dashboard in DASHBOARDS.items():
        assert dashboard["uid"] == uid
        assert dashboard["title"].startswith("Trainmaster / ")
        assert dashboard["description"].endswith(".")


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_the_numbers_of_panels_are_unique(uid: str) -> None:
    ids = Counter(panel["id"] for panel in DASHBOARDS[uid]["panels"])
    assert [number for number, times in ids.items() if times > 1 or not number] == []


def test_a_panel_keeps_its_number() -> None:
    """People link to panels by number. A number whose panel changes its meaning has to change here too."""
    lines = (Path(__file__).with_name("panel_numbers.txt")).read_text().splitlines()
    assert lines == [f"{uid} {panel['id']} {panel['title']}" for uid, panel in PANELS]


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_no_panel_covers_another_one(uid: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARDS[uid]["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} covers {taken[x, y]}"
                taken[x, y] = panel["title"]


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_the_data_source_is_chosen_by_a_variable(uid: str) -> None:
    dashboard = DASHBOARDS[uid]
    first, *others = dashboard["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    asked = [*panels(dashboard), *others, *(dashboard["annotations"].get("list") or [])]
    asked += [target for panel in panels(dashboard) for target in panel["targets"]]
    assert {str(part["datasource"]) for part in asked} == {str({"type": "prometheus", "uid": "${datasource}"})}


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_every_variable_is_used_and_known(uid: str) -> None:
    dashboard = DASHBOARDS[uid]
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    exprs = [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]
    exprs += [annotation["expr"] for annotation in dashboard["annotations"].get("list") or []]
    used = {found[0] or found[1] for expr in exprs for found in VARIABLE.findall(expr) if not found[1].startswith("__")}
    assert used == set(variables) - {"datasource"}
    for name in used:
        assert variables[name]["label"]
        assert variables[name]["refresh"] == 2, f"${name} is not asked for again when the time changes"


@pytest.mark.parametrize("pair", PANELS, ids=named)
def test_a_panel_says_what_it_shows_and_what_good_looks_like(pair: tuple[str, dict[str, Any]]) -> None:
    _, panel = pair
    assert re.match(r"[A-Z].{2,40}$", panel["title"])
    words = panel["description"]
    assert words.endswith(".")
    assert len(words) > 60, "too short to say what to do"
    assert "Good: " in words, "it does not say what good looks like"
    assert panel["fieldConfig"]["defaults"].get("noValue"), "nothing is said where there is no data"


@pytest.mark.parametrize("pair", PANELS, ids=named)
def test_a_panel_has_a_unit_that_grafana_knows_and_that_its_metric_has(pair: tuple[str, dict[str, Any]]) -> None:
    _, panel = pair
    given = {None: panel["fieldConfig"]["defaults"].get("unit")}
    for override in panel["fieldConfig"]["overrides"]:
        for part in override["properties"]:
            if part["id"] == "unit":
                given[override["matcher"]["options"]] = part["value"]
    assert set(given.values()) <= UNITS
    units = set(given.values())
    for target in panel["targets"]:
        assert units_of(target["expr"]) <= units, target["expr"]


def units_of(expr: str) -> set[str]:
    """The units that an expression must have by the names of its metrics; none where these do not tell."""
    names = _names(expr)
    if " / " in expr:
        if all("recover" in name for name in names):
            return {"s"}  # for each of the recoveries
        return {"percentunit"}  # of all other expressions, a part of a whole
    if any("cpu_seconds" in name for name in names):
        return {"short"}  # seconds in a second are cores
    if "changes(" in expr:
        return {"short"}
    return {unit for name in names if (unit := _unit(name, rate="rate(" in expr))}


def _unit(name: str, rate: bool) -> str:
    """The unit of a metric by its name; of its rate, if that is asked for. "" if the name doesn't tell."""
    if name.endswith("_bytes_total"):
        return "Bps" if rate else "bytes"
    if name.endswith("_seconds_total"):
        return "short" if rate else "s"
    for ending, unit in (("_bytes", "bytes"), ("_ratio", "percentunit"), ("_seconds", "s"), ("_seconds_bucket", "s")):
        if name.endswith(ending):
            return unit
    return ""


def _names(expr: str) -> list[str]:
    return re.findall(r"\b(?:trainmaster|process)_\w+", expr)


@pytest.mark.parametrize("asked", all_asked(), ids=lambda asked: asked.where)
def test_an_expression_is_right_by_its_grammar_and_asks_for_what_is_exported(asked: Asked) -> None:
    for selector in selectors(parse(asked)):
        name = selector.name
        if name.startswith("process_"):
            continue
        if ":" in name:
            assert any(rule.where.endswith(f": {name}") for rule in all_asked()), f"no rule records {name}"
            continue
        assert name in EXPORTED, f"{name} is not exported"
        for matcher in selector.matchers.matchers:
            assert matcher.name in EXPORTED[name] | SCRAPED, f"{name} has no label {matcher.name}"


LETTER, PADDING, LEAST_COLUMN, WINDOW = 7.2, 12, 150, 1366
"""Pixels of a letter in a table, of a cell beside its words, of a column without a width, and of the table in a window
of 1420."""


@pytest.mark.parametrize("uid", ["trainmaster-fleet", "trainmaster-job", "trainmaster-operator"])
def test_signs_and_runbooks_fit_their_columns_and_the_columns_fit_the_page(uid: str) -> None:
    (panel,) = [panel for panel in panels(DASHBOARDS[uid]) if panel["title"] == "What is wrong, and what to type first"]
    widths = {
        override["matcher"]["options"]: part["value"]
        for override in panel["fieldConfig"]["overrides"]
        for part in override["properties"]
        if part["id"] == "custom.width"
    }
    columns = panel["transformations"][-1]["options"]["renameByName"].values()
    page_px = sum(widths.get(column, LEAST_COLUMN) for column in columns)
    assert page_px <= WINDOW
    (expr,) = [target["expr"] for target in panel["targets"]]
    words = [f"{words}: {reason}" for reason, words in signs._UNABLE if words in expr]
    words += re.findall(r'"sign", "([^:"]+)"', expr)
    assert max(map(len, words)) * LETTER + PADDING <= widths["What is wrong"]
    runbooks = re.findall(r'"runbook", "([a-z-]+)"', expr)
    assert max(map(len, runbooks)) * LETTER + PADDING <= widths.get("Runbook", LEAST_COLUMN)


def test_an_older_chart_beside_a_newer_operator_asks_for_metrics_that_are_still_exported() -> None:
    """The file has the metrics that the chart asks for, or has asked for since it has dashboards."""
    ever = set(Path(__file__).with_name("asked_metrics.txt").read_text().split())
    assert ever <= EXPORTED.keys(), "a metric that an older chart asks for is gone"
    now = {name for asked in all_asked() for name in re.findall(r"\btrainmaster_\w+", asked.expr)}
    assert now <= ever, "add what the chart asks for now to asked_metrics.txt, and remove nothing from it"


def test_conditions_that_alerts_and_panels_name_are_not_the_ones_that_a_job_with_many_conditions_leaves_out() -> None:
    found = (re.findall(r'condition=~?"([\w|]+)"', asked.expr) for asked in all_asked())
    assert {kind for kinds in found for one in kinds for kind in one.split("|")} == set(job_metric_values._FIRST)


@pytest.mark.parametrize("asked", [*of_panels()], ids=lambda asked: asked.where)
def test_a_rate_looks_back_as_far_as_grafana_says_or_over_the_time_shown(asked: Asked) -> None:
    windows = re.findall(r"\[([^\]:]*)(?::[^\]]*)?\]", asked.expr)
    assert set(windows) <= {"$__rate_interval", "$__range", "1h", signs.NO_STEP}
    if asked.panel and asked.panel["type"] == "timeseries":
        assert set(windows) <= {"$__rate_interval"}, (
            "a curve over a fixed window changes when one zooms in only by chance"
        )


@pytest.mark.parametrize("asked", [*of_panels()], ids=lambda asked: asked.where)
def test_a_counter_is_never_shown_as_such_over_time(asked: Asked) -> None:
    """A curve of a counter only rises. A number or a table may show what it has come to."""
    if asked.panel and asked.panel["type"] == "timeseries":
        for name in re.findall(r"\b\w+_total\b", asked.expr):
            if not any(grows in asked.expr for grows in ("increase(", "rate(", "offset $__interval")):
                assert name == "trainmaster_job_total", name


@pytest.mark.parametrize("asked", all_asked(), ids=lambda asked: asked.where)
def test_what_the_status_counts_is_one_counter_whichever_replica_tells_of_it(asked: Asked) -> None:
    """A replica that leads again goes on in its old series, which grew meanwhile under another leader."""
    counted = [family.full_name for family in FAMILIES if family.kind == "counter" and family.source.startswith(STATUS)]
    # The time shown may be too short for a subquery.
    grown = re.findall(r"increase\((\w*)(?!\w|[^\[]*\[\$__range\])", asked.expr)
    assert not set(grown) & set(counted), "take the increase of max by (...) (...), as promql.increase does"


@pytest.mark.parametrize("pair", [pair for pair in PANELS if pair[1]["type"] == "timeseries"], ids=named)
def test_a_bar_is_one_event_and_a_curve_is_no_count(pair: tuple[str, dict[str, Any]]) -> None:
    """`increase()` shows an event in every point whose window has it, and stretches its count to the window."""
    _, panel = pair
    bars = panel["fieldConfig"]["defaults"]["custom"].get("drawStyle") == "bars"
    for target in panel["targets"]:
        assert "increase(" not in target["expr"]
        assert bars == ("offset $__interval" in target["expr"])


@pytest.mark.parametrize("pair", [pair for pair in PANELS if pair[1]["type"] == "stat"], ids=named)
def test_a_number_is_only_green_where_no_better_one_is_possible(pair: tuple[str, dict[str, Any]]) -> None:
    """A tile that is green in an incident tells people to look elsewhere. `text` says nothing."""
    uid, panel = pair
    green = [step for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"] if step["color"] == "green"]
    assert bool(green) == (f"{uid} {panel['id']}" in JUDGED)


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_a_name_has_one_colour_in_all_panels(uid: str) -> None:
    colors: dict[str, set[str]] = {}
    for panel in panels(DASHBOARDS[uid]):
        if panel["type"] != "timeseries":
            continue
        assert panel["fieldConfig"]["defaults"]["color"]["mode"] == "palette-classic-by-name"
        for override in panel["fieldConfig"]["overrides"]:
            for part in override["properties"]:
                colors.setdefault(override["matcher"]["options"], set()).add(part["value"]["fixedColor"])
    assert {name: found for name, found in colors.items() if len(found) > 1 and name not in TWO_THINGS} == {}


@pytest.mark.parametrize(
    "named_colors",
    [
        value
        for module in (looks, operator_dashboard)
        for name, value in vars(module).items()
        if name.endswith("_COLORS")
    ],
    ids=lambda given: next(iter(given)),
)
def test_two_names_of_one_panel_have_two_colours(named_colors: dict[str, str]) -> None:
    assert [color for color, times in Counter(named_colors.values()).items() if times > 1] == []


@pytest.mark.parametrize("asked", [*of_panels()], ids=lambda asked: asked.where)
def test_only_what_is_chosen_is_shown(asked: Asked) -> None:
    """Every series of a job is selected by the dashboard's variables; what can't be says so in its description."""
    wanted = {"trainmaster-fleet": ("namespace",), "trainmaster-operator": ("namespace", "pod")}
    names = wanted.get(asked.where.split(":")[0], ("namespace", "job"))
    for selector in selectors(promql_parser.parse(everything().fill(asked.expr))):
        if selector.name == "trainmaster_leader" and "pod" not in names:
            continue  # does one lead at all?
        if {matcher.name for matcher in selector.matchers.matchers} >= set(names):
            continue
        assert asked.panel is not None
        assert "Of all jobs of the operator" in asked.panel["description"], f"{selector.name} is of all jobs"


@pytest.mark.parametrize("asked", [*of_panels()], ids=lambda asked: asked.where)
def test_a_legend_names_labels_that_the_expression_keeps(asked: Asked) -> None:
    assert asked.panel is not None
    for target in asked.panel["targets"]:
        kept = {label for found in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in re.split(r",\s*", found)}
        said = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        if "and on (instance)" in target["expr"]:
            kept |= SCRAPED
        assert said <= kept


@pytest.mark.parametrize("pair", [pair for pair in PANELS if pair[1]["type"] == "table"], ids=named)
def test_a_table_shows_labels_that_its_queries_keep(pair: tuple[str, dict[str, Any]]) -> None:
    _, panel = pair
    organize = next(part for part in panel["transformations"] if part["id"] == "organize")["options"]
    kept = {
        label
        for target in panel["targets"]
        for found in re.findall(r"by \(([^)]*)\)", target["expr"])
        for label in re.split(r",\s*", found)
    }
    values = {"Value"} | {f"Value #{target['refId']}" for target in panel["targets"]}
    assert set(organize["indexByName"]) <= kept | values
    outermost = {
        label
        for target in panel["targets"]
        if (found := re.search(r"by \(([^)]*)\)", target["expr"]))
        for label in re.split(r",\s*", found[1])
    }
    assert outermost <= organize["indexByName"].keys() | organize["excludeByName"].keys(), "a label has no column"
    titles = set(organize["renameByName"].values())
    for override in panel["fieldConfig"]["overrides"]:
        assert override["matcher"]["options"] in titles
    for sort in panel["options"].get("sortBy") or []:
        assert sort["displayName"] in titles
