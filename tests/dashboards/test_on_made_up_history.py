"""Every expression on hours of made-up history: with accelerators, queues, certificates and many jobs, which no run on
one small machine has. That the made-up series are like the real ones is tested too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dashboards import scenes
from tests.dashboards.asking import Chosen, all_asked, dashboards, everything, panels
from tests.dashboards.exported import labels_by_series
from tests.dashboards.history import CATEGORIES, CAUSES, CLOCK, RUNGS, STEP_S
from tests.dashboards.prometheus import Prometheus, serving, write_blocks
from trainmaster_operator.planning.facts.job_state import Rung
from trainmaster_operator.planning.lifecycle import metric_categories

pytestmark = [pytest.mark.processes, pytest.mark.together, pytest.mark.parametrize("run", ["made-up"])]

SCENE = scenes.DOCUMENTED
TARGET = {"namespace", "pod", "instance"}

EMPTY = {
    "trainmaster-job 26": "nothing is wrong with the job that is looked at",
    "trainmaster-operator 22": "nothing is wrong with the operators",
    "trainmaster-job 8": "the job that is looked at waits for nothing",
    "trainmaster-job 18": "it has no straggler",
    "trainmaster-recovery 14": "no job restarted in the last hour",
}

WOBBLE = -0.07
"""Of made-up values, at the end of the scene."""
WORKERS = 32 + 8 + 2 + 16
JOBS = 7

MADE_UP = {
    "trainmaster-fleet 1": {"": 2.0},  # the one that failed, and the one with a straggler
    "trainmaster-fleet 2": {"": 1.0},
    "trainmaster-fleet 3": {"": 4.0},
    "trainmaster-fleet 5": {"": 4 / 5},  # one job waits for its pods
    "trainmaster-job 4": {"": 2.0},
    "trainmaster-job 5": {"": 100.0},
    "trainmaster-recovery 1": {"": 5.0},
    "trainmaster-recovery 2": {"": 4.0},
    "trainmaster-recovery 3": {"": 180.0},
    "trainmaster-recovery 4": {"": 120.0},
    "trainmaster-operator 1": {"": 1.0},
    "trainmaster-operator 2": {"": 2.0},
    "trainmaster-operator 4": {"": 56.0},
    "trainmaster-fleet 12": {"vision/vit-large": 0.96 / 1.7},
    "trainmaster-fleet 13": {"shared": 1.0},
    "trainmaster-job 13": {"MFU": 0.41},
    "trainmaster-job 24": {"busy": 0.96},
    "trainmaster-job 25": {"taken": 66e9 * 32},
    "trainmaster-job 22": {"device": 0.82},
    "trainmaster-job 23": {"received": 8.4e9},
    "trainmaster-operator 3": {"": 0.0},
    "trainmaster-operator 6": {"": 60 * 86400.0 - 6 * 3600.0},
    "trainmaster-operator 20": {"trainmaster-operator-6f4c-a": 0.08},
    "trainmaster-fleet 8": {"": SCENE.hours * 3600.0},
    "trainmaster-fleet 9": {"Running": 4.0, "Pending": 1.0, "Failed": 1.0, "Succeeded": 1.0},
    "trainmaster-fleet 10": {"useful": 480 / 482, "checkpoint": 2 / 482},  # of four jobs two save, for a second
    "trainmaster-fleet 11": {"desired": WORKERS, "current": WORKERS, "ready": WORKERS, "spare": 4.0},
    "trainmaster-fleet 14": {"tokens": (0.3 + 1.2 / 1.7 + 2.5 + 1.2) * 65536 * (1 + WOBBLE / 4)},
    "trainmaster-job 15": {"useful": 120 / 121, "checkpoint": 1 / 121},  # a save stops it for a second
    "trainmaster-job 16": {"storage": 0.0, "memory": 20.0},
    "trainmaster-job 17": {"storage": 12.0 * (1 + WOBBLE), "memory": 0.4 * (1 + WOBBLE)},
    "trainmaster-job 20": {"cores": 3.4 * 32},
    "trainmaster-job 21": {"device": 61e9, "container": 38e9, "process": 31e9},
    "trainmaster-recovery 7": {"restart": 2 * 0.05 * 3600.0},
    "trainmaster-recovery 9": {"checkpoint": 2 / 120},
    "trainmaster-recovery 10": {"half": 150.0, "95 of 100": 285.0},
    "trainmaster-recovery 15": {"raised": 0.0, "dropped": 0.0, "confirmed": 0.0},
    "trainmaster-recovery 16": {"failed saves": 0.0},
    "trainmaster-operator 7": {"trainmaster-operator-6f4c-a": 0.0, "trainmaster-operator-6f4c-b": 0.0},
    "trainmaster-operator 8": {"wait": 0.1, "look": 0.1, "decision about a failure": 0.1},
    "trainmaster-operator 9": {"ok": JOBS / 5, "conflict": JOBS / 5 * 0.02},
    "trainmaster-operator 10": {"trainmaster-operator-6f4c-a": 0.002, "trainmaster-operator-6f4c-b": 0.002},
    "trainmaster-operator 11": {"200": JOBS / 10, "201": JOBS / 10 * 0.05, "409": JOBS / 10 * 0.01, "0": 0.0},
    "trainmaster-operator 12": {"patch": 0.1},
    "trainmaster-operator 13": {"progress": JOBS / 10, "intent": JOBS / 10 * 0.05},
    "trainmaster-operator 14": {"Pod": 0.0, "DistributedTrainingJob": 0.0},
    "trainmaster-operator 15": {"agents": 8.0 * JOBS, "pods": 8.0 * JOBS},
    "trainmaster-operator 16": {"lost": 0.0},
    "trainmaster-operator 17": {"ok": 4.0 * JOBS},
    "trainmaster-operator 18": {"told": JOBS / 600},
    "trainmaster-operator 19": {"trainmaster-operator-6f4c-a": 1.3e8 + 1e5 * JOBS + SCENE.hours * 3600 * 2e3},
    "trainmaster-operator 21": {"trainmaster-operator-6f4c-a": 1.0, "trainmaster-operator-6f4c-b": 0.0},
}
"""Values of panels as they were made up: of those that no run on this machine fills, and of some others."""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("history")
    write_blocks(SCENE.history(), folder)
    with serving(folder, lookback_s=0.9 * STEP_S) as prometheus:
        yield prometheus


def chosen(uid: str) -> Chosen:
    variables = SCENE.dashboards[uid]
    return Chosen({**everything().variables, **variables}, SCENE.hours * 3600, 120, STEP_S)


PANELS = [(uid, panel) for uid, dashboard in dashboards().items() for panel in panels(dashboard)]


def test_every_panel_has_data_or_a_known_reason_to_have_none(history: Prometheus, run: str) -> None:
    wrong = []
    for uid, panel in PANELS:
        name = f"{uid} {panel['id']}"
        exprs = [chosen(uid).fill(target["expr"]) for target in panel["targets"]]
        found = [series for expr in exprs for series in history.at(expr, SCENE.end_s)]
        if bool(found) == (name in EMPTY):
            wrong.append(f"{name} ({panel['title']}) has {len(found)} series: {EMPTY.get(name, 'it should have some')}")
    assert not wrong, "\n".join(wrong)


def test_panels_show_what_was_made_up(history: Prometheus, run: str) -> None:
    wrong = []
    titles = {f"{uid} {panel['id']}": (uid, panel) for uid, panel in PANELS}
    for name, expected in MADE_UP.items():
        uid, panel = titles[name]
        shown: dict[str, float] = {}
        for target in panel["targets"]:
            for series in history.at(chosen(uid).fill(target["expr"]), SCENE.end_s):
                legend = target["legendFormat"]
                for label, value in series.labels:
                    legend = legend.replace(f"{{{{{label}}}}}", value)
                shown[legend] = series.value
        for legend, value in expected.items():
            if shown.get(legend) != pytest.approx(value, rel=0.02):
                wrong.append(f"{name} ({panel['title']}) shows {shown}, made up was {expected}")
    assert not wrong, "\n".join(wrong)


def test_every_rule_is_evaluated_and_only_the_alerts_of_the_scene_hold(history: Prometheus, run: str) -> None:
    rules = [asked for asked in all_asked() if asked.rule is not None]
    held = {asked.where.split(": ")[1] for asked in rules if history.at(asked.expr, SCENE.end_s)}
    recorded = {asked.where.split(": ")[1] for asked in rules if asked.rule and "record" in asked.rule}
    assert held - recorded == {
        "TrainmasterJobFailed",
        "TrainmasterJobPendingLong",
        "TrainmasterJobStragglerPersistent",
        "TrainmasterRecoverySlow",
    }
    # Nothing records here, so a rule that asks for what another one records has no data.
    from_others = {a.where.split(": ")[1] for a in rules if a.rule and "record" in a.rule and "trainmaster:" in a.expr}
    after_a_recovery_s = SCENE.begin_s + 4.5 * 3600
    held |= {asked.where.split(": ")[1] for asked in rules if history.at(asked.expr, after_a_recovery_s)}
    assert held & recorded == recorded - from_others


def test_made_up_series_have_the_names_labels_and_words_of_real_ones(run: str) -> None:
    known = labels_by_series()
    text = SCENE.history()
    heads = {line.partition("} ")[0] for line in text.splitlines() if line.startswith("trainmaster")}
    for head in heads:
        name, _, labels = head.partition("{")
        words = {pair.partition("=")[0] for pair in labels.split('",') if pair}
        assert words <= known[name] | TARGET, head
    assert CATEGORIES == metric_categories.LOSS_WORDS
    assert CLOCK == metric_categories.PHASE_WORDS
    assert set(CAUSES) == set(metric_categories.FAILURE_WORDS)
    assert set(RUNGS) == {rung.value for rung in Rung}
