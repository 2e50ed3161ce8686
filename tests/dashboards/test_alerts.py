"""Each alert fires on a series that calls for it, says the right sentence, and is quiet on one that just doesn't."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.dashboards.promql import leaders
from charts.generate import CHART, ROOT
from tests.dashboards.asking import rules
from tests.dashboards.prometheus import promtool
from trainmaster_operator.runtime.pass_retries import LONGEST_RETRY_S

FILE = CHART / "files" / "alerts.yaml"
ALERTS = {rule["alert"]: rule for rule in rules(FILE)}
RUNBOOKS = "https://trainmaster.dev/docs/runbooks/"
"""The default of the chart's value metrics.prometheusRule.runbookUrl."""

JOB = 'namespace="lab",job="gpt"'
OPERATOR = 'namespace="ops",pod="op-1",instance="10.0.0.4:8080"'
IN_JOB = {"namespace": "lab", "job": "gpt"}
IN_OPERATOR = {"namespace": "ops"}
RETRIES = " ".join(f"{errors}x{math.ceil(LONGEST_RETRY_S / 60) - 1}" for errors in range(6))
"""Errors of a job that the operator tries as seldom as it ever does."""


@dataclass(frozen=True)
class Case:
    """Series (name -> values each minute) at which the alert fires after `at`, and others at which it doesn't."""

    at: str
    labels: dict[str, str]
    summary: str
    fires: dict[str, str]
    quiet: dict[str, str]


def buckets(name: str, labels: str, slow: str, fast: str) -> dict[str, str]:
    """A histogram whose observations are `fast` (at most 0.5 s) and `slow` (at most 120 s) in each minute."""
    return {
        f'{name}_bucket{{{labels},le="0.5"}}': f"0+{fast}x90",
        f'{name}_bucket{{{labels},le="120"}}': f"0+{int(fast) + int(slow)}x90",
        f'{name}_bucket{{{labels},le="+Inf"}}': f"0+{int(fast) + int(slow)}x90",
    }


CASES: dict[str, Case] = {
    "TrainmasterOperatorAbsent": Case(
        "10m", {}, "No Trainmaster operator can be scraped.",
        {f"up{{{OPERATOR}}}": "1x20"},
        {f"trainmaster_leader{{{OPERATOR}}}": "1x20"},
    ),
    "TrainmasterNoLeader": Case(
        "5m", IN_OPERATOR, "No Trainmaster operator in ops leads.",
        {f"trainmaster_leader{{{OPERATOR}}}": "0x20"},
        {f"trainmaster_leader{{{OPERATOR}}}": "0x20", 'trainmaster_leader{namespace="ops",pod="op-2"}': "1x20"},
    ),
    "TrainmasterDefinitionDiffers": Case(
        "16m", IN_OPERATOR,
        "The CustomResourceDefinition of jobs is not of the version of the operator in ops.",
        {f"trainmaster_crd_fields_missing{{{OPERATOR}}}": "3x20"},
        {f"trainmaster_crd_fields_missing{{{OPERATOR}}}": "0x20",
         f"trainmaster_crd_fields_unknown{{{OPERATOR}}}": "0x20"},
    ),
    "TrainmasterReconcileErrors": Case(
        "45m", IN_OPERATOR, "The Trainmaster operator in ops fails to handle some job again and again.",
        {f'trainmaster_reconcile_total{{{OPERATOR},result="error"}}': RETRIES},
        {f'trainmaster_reconcile_total{{{OPERATOR},result="error"}}': "0x25 13x30",
         f'trainmaster_reconcile_total{{{OPERATOR},result="ok"}}': "0+9x60"},
    ),
    "TrainmasterApiCallsFail": Case(
        "15m", {**IN_OPERATOR, "reason": "WebhookFailed"},
        "Calls of the API server for 2 training jobs fail: WebhookFailed, for the Trainmaster operator in ops.",
        {f'trainmaster_jobs_failing_api_calls{{{OPERATOR},reason="WebhookFailed"}}': "2x20"},
        {f'trainmaster_jobs_failing_api_calls{{{OPERATOR},reason="WebhookFailed"}}': "2x5 0x15"},
    ),
    "TrainmasterApiErrors": Case(
        "20m", IN_OPERATOR, "One in twenty calls of the API server by the Trainmaster operator in ops fails.",
        {f'trainmaster_api_calls_total{{{OPERATOR},code="500"}}': "0+6x30",
         f'trainmaster_api_calls_total{{{OPERATOR},code="200"}}': "0+100x30"},
        {f'trainmaster_api_calls_total{{{OPERATOR},code="0"}}': "0+5x30",
         f'trainmaster_api_calls_total{{{OPERATOR},code="200"}}': "0+100x30"},
    ),
    "TrainmasterForbidden": Case(
        "20m", {**IN_OPERATOR, "verb": "list", "kind": "Pod"}, "The Trainmaster operator in ops may not list Pod.",
        {f'trainmaster_api_calls_total{{{OPERATOR},code="403",verb="list",kind="Pod"}}': "0+1x30"},
        {f'trainmaster_api_calls_total{{{OPERATOR},code="403",verb="create",kind="Pod"}}': "0+1x30"},
    ),
    "TrainmasterQueueSlow": Case(
        "20m", IN_OPERATOR,
        "Jobs wait for more than a second until the Trainmaster operator in ops looks at them.",
        buckets("trainmaster_queue_wait_seconds", OPERATOR, slow="3", fast="97"),
        buckets("trainmaster_queue_wait_seconds", OPERATOR, slow="0", fast="97"),
    ),
    "TrainmasterWatchStale": Case(
        "10m", {**IN_OPERATOR, "pod": "op-1", "kind": "Pod"},
        "Operator op-1 has received nothing about any Pod for three minutes.",
        {f'trainmaster_watch_age_seconds{{{OPERATOR},kind="Pod"}}': "185x20"},
        {f'trainmaster_watch_age_seconds{{{OPERATOR},kind="Pod"}}': "175x20"},
    ),
    "TrainmasterOperatorRestarts": Case(
        "25m", {**IN_OPERATOR, "pod": "op-1"}, "Operator op-1 restarted 3 times within half an hour.",
        {f"process_start_time_seconds{{{OPERATOR}}}": "1x5 2x5 3x5 4x9", f"trainmaster_leader{{{OPERATOR}}}": "1x30"},
        {f"process_start_time_seconds{{{OPERATOR}}}": "1x5 2x5 3x15", f"trainmaster_leader{{{OPERATOR}}}": "1x30",
         'process_start_time_seconds{namespace="ops",pod="other",instance="10.0.0.9:80"}': "0+1x30"},
    ),
    "TrainmasterAgentsLost": Case(
        "15m", IN_OPERATOR, "6 agents of training jobs were lost within ten minutes.",
        {f"trainmaster_agents_lost_total{{{OPERATOR}}}": "0x11 6x20"},
        {f"trainmaster_agents_lost_total{{{OPERATOR}}}": "0x11 4x20"},
    ),
    "TrainmasterCertificateExpiring": Case(
        "20m", {**IN_OPERATOR, "certificate": "control"},
        "The certificate control of the Trainmaster operator ends in 6d 23h 40m 0s.",
        {f'trainmaster_certificate_expiry_timestamp_seconds{{{OPERATOR},certificate="control"}}': "604800x30"},
        {f'trainmaster_certificate_expiry_timestamp_seconds{{{OPERATOR},certificate="control"}}': "606100x30"},
    ),
    "TrainmasterJobFailed": Case(
        "1m", {**IN_JOB, "reason": "OutOfMemory"}, "Training job lab/gpt failed: OutOfMemory.",
        {f'trainmaster_job_condition{{{JOB},condition="Failed",reason="OutOfMemory"}}': "1x5"},
        {f'trainmaster_job_condition{{{JOB},condition="Recovering",reason="OutOfMemory"}}': "1x5"},
    ),
    "TrainmasterJobHeld": Case(
        "1m", {**IN_JOB, "reason": "DataError"}, "Training job lab/gpt is held after DataError and keeps its pods.",
        {f'trainmaster_job_condition{{{JOB},condition="Held",reason="DataError"}}': "1x5"},
        {f'trainmaster_job_condition{{{JOB},condition="Suspended",reason="Suspended"}}': "1x5"},
    ),
    "TrainmasterJobPendingLong": Case(
        "5m", {**IN_JOB, "reason": "Unschedulable"}, "Training job lab/gpt has waited for half an hour: Unschedulable.",
        {f'trainmaster_job_pending_seconds{{{JOB},reason="Unschedulable"}}': "1801+60x9"},
        {f'trainmaster_job_pending_seconds{{{JOB},reason="Unschedulable"}}': "1440+60x6",
         f'trainmaster_job_pending_seconds{{{JOB},reason="SchedulingGated"}}': "1801+60x9",
         f'trainmaster_job_pending_seconds{{{JOB},reason="Suspended"}}': "1801+60x9"},
    ),
    "TrainmasterJobUnreadable": Case(
        "10m", IN_OPERATOR, "2 training jobs have a manifest that the Trainmaster operator can't understand.",
        {f'trainmaster_jobs{{{OPERATOR},phase="Unreadable"}}': "2x20"},
        {f'trainmaster_jobs{{{OPERATOR},phase="Unreadable"}}': "0x20"},
    ),
    "TrainmasterJobNoProgress": Case(
        "70m", IN_JOB, "Training job lab/gpt has completed no step for an hour.",
        {f"trainmaster_job_step{{{JOB}}}": "40x90"},
        {f"trainmaster_job_step{{{JOB}}}": "40x35 41x55"},
    ),
    "TrainmasterJobGoodputLow": Case(
        "40m", IN_JOB, "Training job lab/gpt loses a fifth of its time to failures.",
        {f"trainmaster_job_goodput_ratio{{{JOB}}}": "0.79x60",
         f'trainmaster_job_phase{{{JOB},phase="Running"}}': "1x60"},
        {f"trainmaster_job_goodput_ratio{{{JOB}}}": "0.81x60",
         f'trainmaster_job_phase{{{JOB},phase="Running"}}': "1x60",
         'trainmaster_job_goodput_ratio{namespace="lab",job="over"}': "0.2x60",
         'trainmaster_job_phase{namespace="lab",job="over",phase="Succeeded"}': "1x60"},
    ),
    "TrainmasterJobRecoveringTooOften": Case(
        "30m", IN_JOB, "Training job lab/gpt restarted 6 times within half an hour.",
        {f'trainmaster_job_restarts_total{{{JOB},rung="inPlace"}}': "0x5 4x40",
         f'trainmaster_job_restarts_total{{{JOB},rung="pod"}}': "0x9 2x40"},
        {f'trainmaster_job_restarts_total{{{JOB},rung="inPlace"}}': "0x5 4x40",
         f'trainmaster_job_restarts_total{{{JOB},rung="free"}}': "0x9 9x40"},
    ),
    "TrainmasterJobCheckpointTooOld": Case(
        "15m", IN_JOB, "The newest checkpoint of training job lab/gpt is 2h 15m 0s old.",
        {f'trainmaster_job_checkpoint_age_seconds{{{JOB},tier="storage"}}': "7200+60x20",
         f'trainmaster_job_phase{{{JOB},phase="Running"}}': "1x20"},
        {f'trainmaster_job_checkpoint_age_seconds{{{JOB},tier="storage"}}': "7100x20",
         f'trainmaster_job_checkpoint_age_seconds{{{JOB},tier="memory"}}': "9000x20",
         f'trainmaster_job_phase{{{JOB},phase="Running"}}': "1x20"},
    ),
    "TrainmasterJobStragglerPersistent": Case(
        "20m", IN_JOB, "One rank of training job lab/gpt computes 1.6 times as long as the others.",
        {f"trainmaster_job_straggler_slowdown{{{JOB}}}": "1.6x30"},
        {f"trainmaster_job_straggler_slowdown{{{JOB}}}": "1.4x30"},
    ),
    "TrainmasterJobMemoryFull": Case(
        "15m", IN_JOB, "A container of training job lab/gpt is nearly out of memory.",
        {f'trainmaster_job_memory_used_ratio{{{JOB},what="container"}}': "0.96x20"},
        {f'trainmaster_job_memory_used_ratio{{{JOB},what="container"}}': "0.94x20",
         f'trainmaster_job_memory_used_ratio{{{JOB},what="device"}}': "0.99x20"},
    ),
    "TrainmasterCheckpointsFail": Case(
        "5m", {}, "Checkpoints of training jobs could not be written to storage.",
        {f"trainmaster_checkpoint_failures_total{{{OPERATOR}}}": "0 0 1x20"},
        {f"trainmaster_checkpoint_failures_total{{{OPERATOR}}}": "3x20"},
    ),
    "TrainmasterRestartsOften": Case(
        "65m", {"cause": "Crash"}, "Training jobs restarted 24 times within an hour because of Crash.",
        {f'trainmaster_restarts_total{{{OPERATOR},cause="Crash",scope="pod"}}': "0+0.4x90"},
        {f'trainmaster_restarts_total{{{OPERATOR},cause="Crash",scope="pod"}}': "0+0.3x90",
         f'trainmaster_restarts_total{{{OPERATOR},cause="Crash",scope="free"}}': "0+9x90"},
    ),
    "TrainmasterRecoverySlow": Case(
        "75m", {}, "One in twenty recoveries of training jobs takes longer than a minute.",
        buckets("trainmaster_recovery_seconds", f'{OPERATOR},phase="total"', slow="12", fast="88"),
        buckets("trainmaster_recovery_seconds", f'{OPERATOR},phase="total"', slow="3", fast="97"),
    ),
}  # fmt: skip


def test_every_alert_has_its_case() -> None:
    assert set(CASES) == set(ALERTS)


def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    """One run of promtool for all: it names the alert, and what it expected and got."""
    tests = []
    for alert, case in CASES.items():
        rule = ALERTS[alert]
        fired = {
            "exp_labels": {**case.labels, **rule["labels"]},
            "exp_annotations": {**rule["annotations"], "summary": case.summary},
        }
        tests += [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [{"eval_time": case.at, "alertname": alert, "exp_alerts": expected}],
            }
            for series, expected in ((case.fires, [fired]), (case.quiet, []))
        ]
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": tests}))
    code, said = promtool("test", "rules", file)
    assert code == 0, said


def test_what_happened_under_another_leader_is_counted_once_when_a_replica_leads_again(tmp_path: Path) -> None:
    """Replica a leads, then b, under which the job restarts three times, then a again, which has read the status."""
    restarts = f'trainmaster_job_restarts_total{{{JOB},rung="inPlace",instance="'
    told = {f'{restarts}a"}}': "1x5 stale _x7 4x20", f'{restarts}b"}}': "_x6 1 2 3 4x3 stale"}
    series = [{"series": name, "values": values} for name, values in told.items()]
    name = "trainmaster:job_restarts:increase_1h"
    asked = {
        "expr": f"round({name})",
        "eval_time": "30m",
        "exp_samples": [{"labels": f'{{{JOB},rung="inPlace"}}', "value": 3}],
    }
    quiet = {"eval_time": "20m", "alertname": "TrainmasterJobRecoveringTooOften", "exp_alerts": []}
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [asked], "alert_rule_test": [quiet]}
    rule_files = [str(FILE), str(CHART / "rules" / "recording.yaml")]
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": rule_files, "evaluation_interval": "1m", "tests": [test]}))
    code, said = promtool("test", "rules", file)
    assert code == 0, said


def test_releases_that_watch_one_namespace_each_are_counted_each_and_their_jobs_together(tmp_path: Path) -> None:
    """Two releases, with two operators each; the one that no longer leads is still scraped once more."""

    def lead(**now: int) -> list[dict[str, str]]:
        names = (name.split("_") for name in now)
        series = [f'trainmaster_leader{{namespace="{space}",pod="{pod}"}}' for space, pod in names]
        return [{"series": name, "values": f"{value}x5"} for name, value in zip(series, now.values(), strict=True)]

    def asked(expr: str, *samples: tuple[str, int]) -> dict[str, Any]:
        found = [{"labels": labels, "value": value} for labels, value in samples]
        return {"expr": expr, "eval_time": "3m", "exp_samples": found}

    jobs = {("a", "1"): 3, ("a", "2"): 3, ("b", "1"): 4}
    running = [
        {"series": f'trainmaster_jobs{{namespace="{space}",pod="{pod}",phase="Running"}}', "values": f"{count}x5"}
        for (space, pod), count in jobs.items()
    ]
    tests = [
        (lead(a_1=1, a_2=0, b_1=0, b_2=1), [asked(leaders(), ("{}", 1))]),
        (lead(a_1=1, a_2=0, b_1=0, b_2=0), [asked(leaders(), ("{}", 0))]),
        (lead(a_1=1, a_2=1, b_1=1, b_2=0), [asked(leaders(), ("{}", 2))]),
        (running, [asked("trainmaster:jobs:count", ('trainmaster:jobs:count{phase="Running"}', 7))]),
    ]
    file = tmp_path / "test.yaml"
    cases = [{"interval": "1m", "input_series": given, "promql_expr_test": wanted} for given, wanted in tests]
    rule_files = [str(CHART / "rules" / "recording.yaml")]
    file.write_text(yaml.safe_dump({"rule_files": rule_files, "evaluation_interval": "1m", "tests": cases}))
    code, said = promtool("test", "rules", file)
    assert code == 0, said


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_how_bad_it_is_and_names_the_job(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("warning", "critical")
    summary = rule["annotations"]["summary"]
    assert summary.count(". ") == 0, "the summary is one sentence"
    assert summary.rstrip().endswith(".")
    if re.search(r"by \(namespace, job", rule["expr"]):
        assert "{{ $labels.namespace }}/{{ $labels.job }}" in summary


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_links_to_a_runbook_that_speaks_of_it(alert: str) -> None:
    url = ALERTS[alert]["annotations"]["runbook_url"]
    assert url.startswith(RUNBOOKS)
    page = ROOT / "docs" / "runbooks" / url.removeprefix(RUNBOOKS)
    assert page.is_file(), f"there is no {page.relative_to(ROOT)}"
    assert f"`{alert}`" in page.read_text(), f"{page.name} does not name the alert that leads to it"


def test_the_page_of_the_dashboards_names_every_alert() -> None:
    page = (ROOT / "docs" / "dashboards.md").read_text()
    assert [alert for alert in ALERTS if f"`{alert}`" not in page] == []


def test_every_runbook_belongs_to_an_alert() -> None:
    linked = {rule["annotations"]["runbook_url"].removeprefix(RUNBOOKS) for rule in ALERTS.values()}
    pages = {page.name for page in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert linked == pages


def test_a_runbook_shows_the_logs_of_all_operators_since_only_the_leaders_has_the_errors() -> None:
    """kubectl shows the log of one pod of a Deployment, whichever it finds first."""
    for page in (ROOT / "docs" / "runbooks").glob("*.md"):
        assert "kubectl logs deployment/" not in page.read_text(), page.name


def test_the_value_of_the_chart_moves_all_links() -> None:
    from charts.generate import render

    values: dict[str, Any] = {"metrics": {"prometheusRule": {"enabled": True, "runbookUrl": "https://wiki/our/"}}}
    (rule,) = [obj for obj in render(values) if obj["kind"] == "PrometheusRule"]
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"] if "alert" in alert]
    assert {alert["annotations"]["runbook_url"].rpartition("/")[0] for alert in alerts} == {"https://wiki/our"}
