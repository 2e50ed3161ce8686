"""The dashboard of the operator itself: who leads, how soon jobs are looked at, the API server, the agents."""

from __future__ import annotations

from typing import Any

from charts.dashboards import signs
from charts.dashboards.colors import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    PLAIN,
    PURPLE,
    RED,
    TEAL,
    YELLOW,
)
from charts.dashboards.layout import page, took_over, variable
from charts.dashboards.panels import (
    NOBODY_LEADS,
    NOTHING_SCRAPED,
    Column,
    Query,
    curves,
    number,
    rows,
)
from charts.dashboards.promql import happened, leaders

IN = 'namespace=~"$namespace", pod=~"$pod"'
RESULT_COLORS = {"ok": GREEN, "conflict": YELLOW, "unavailable": ORANGE, "error": RED}
CODE_COLORS = {
    "200": GREEN,
    "201": "light-green",
    "404": GREY,
    "409": YELLOW,
    "403": RED,
    "0": "dark-red",
    "500": "dark-orange",
    "503": ORANGE,
}
ANSWER_COLORS = {
    "ok": GREEN,
    "elsewhere": BLUE,
    "gone": GREY,
    "throttled": YELLOW,
    "unavailable": ORANGE,
    "unauthorized": PINK,
    "bad": PURPLE,
    "error": RED,
}
VERB_COLORS = {
    "get": GREEN,
    "list": BLUE,
    "watch": GREY,
    "create": YELLOW,
    "apply": ORANGE,
    "patch": TEAL,
    "update": PINK,
    "update_status": PURPLE,
    "delete": RED,
}
WRITE_COLORS = {"progress": GREEN, "intent": BLUE, "create": YELLOW, "delete": RED, "resize": PURPLE}
KIND_COLORS = {"DistributedTrainingJob": GREEN, "Pod": BLUE}
EVENT_COLORS = {"told": GREEN, "counted": BLUE, "dropped": ORANGE, "failed": RED}
LIMIT_BYTES = 2**30
"""Of the operator's container, as the chart has it."""
_RECENT = "$__rate_interval"


def _rate(name: str, by: str, more: str = "") -> str:
    labels = f"{IN}, {more}" if more else IN
    return f"sum by ({by}) (rate(trainmaster_{name}{{{labels}}}[{_RECENT}]))"


def _slowest(name: str, share: float = 0.99, by: str = "", more: str = "") -> str:
    groups = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, {_rate(f'{name}_bucket', groups, more)})"


def _process(name: str) -> str:
    """A metric of the operators' processes; other processes have one of that name too."""
    return f"{name}{{{IN}}} and on (instance) trainmaster_leader{{{IN}}}"


def operator() -> Any:
    return page(
        "operator",
        "Trainmaster / Operator",
        "The operator itself: who leads, how soon jobs are looked at, the API server, the agents, what it uses.",
        [
            variable("namespace", "Namespace of the operator", "trainmaster_leader", many=True),
            variable("pod", "Operator", 'trainmaster_leader{namespace=~"$namespace"}', many=True),
        ],
        [
            (
                "Now",
                100,
                [
                    number(
                        1,
                        "Operators that lead",
                        "In the namespace of a release; of several releases, the one with the worst number. Good: 1. "
                        "With 0, running jobs continue to train, but nothing recovers and no job starts: follow the "
                        "runbook operator-down.",
                        Query(leaders(IN)),
                        unit="short",
                        steps=((None, RED), (1, GREEN), (2, RED)),
                    ),
                    number(
                        2,
                        "Operators",
                        "Operators that are scraped, whether one leads or not. Good: as many as the chart's replicas, "
                        "2 by default. With one, a new leader has to start first, which takes seconds longer.",
                        Query(f"count(trainmaster_leader{{{IN}}})"),
                        unit="short",
                        steps=((None, YELLOW), (2, PLAIN)),
                    ),
                    number(
                        3,
                        "Restarts in the last hour",
                        "Starts of an operator's process. Good: 0. If it restarts again and again, look at its memory "
                        "below, and type `kubectl describe pod`: OOMKilled means that the limit is too low.",
                        Query(
                            f"sum(changes(process_start_time_seconds{{{IN}}}[1h]) "
                            f"and on (instance) last_over_time(trainmaster_leader{{{IN}}}[1h]))"
                        ),
                        unit="short",
                        steps=((None, GREEN), (1, YELLOW), (3, RED)),
                        decimals=0,
                    ),
                    number(
                        4,
                        "Connected agents",
                        "Agents that talk to the leader, one in each running pod. Good: as many as there are running "
                        "pods.",
                        Query(f"sum(trainmaster_agents_connected{{{IN}}})"),
                        unit="short",
                        none=NOBODY_LEADS,
                    ),
                    number(
                        5,
                        "Jobs that it can't read",
                        "Jobs whose manifest this operator does not understand. Good: 0. Otherwise their condition "
                        "ReconcileError says why; they may come from a newer version.",
                        Query(f'sum(trainmaster_jobs{{{IN}, phase="Unreadable"}})'),
                        unit="short",
                        steps=((None, GREEN), (1, RED)),
                        none=NOBODY_LEADS,
                    ),
                    number(
                        6,
                        "Certificate ends in",
                        "Until the certificate that ends first. Good: more than a week; it is renewed by itself "
                        "before. Otherwise follow the runbook certificate-expiring.",
                        Query(f"min(trainmaster_certificate_expiry_timestamp_seconds{{{IN}}}) - time()"),
                        unit="s",
                        steps=((None, RED), (86400, YELLOW), (604800, GREEN)),
                        none="No certificate",
                    ),
                    rows(
                        22,
                        "What is wrong, and what to type first",
                        "Each sign that something is wrong with the operators, with the command to type first and the "
                        "runbook that goes on from there. Good: empty. What is wrong with jobs is on the dashboard "
                        "Fleet.",
                        Query(signs.of_operators(IN)),
                        [
                            Column("pod", "Operator", width=285),
                            Column("sign", "What is wrong", width=360, patterns=signs.COLORS),
                            Column("command", "Type this first", width=575),
                            Column("runbook", "Runbook", width=145),
                        ],
                        span=24,
                        none="No sign that anything is wrong",
                        height=6,
                        hide=("namespace",),
                    ),
                ],
            ),
            (
                "Looking at jobs",
                101,
                [
                    curves(
                        7,
                        "Jobs that wait to be looked at",
                        "Good: 0 nearly always. A number that grows: the operator has too little CPU, or the API "
                        "server is slow.",
                        Query(f"sum by (pod) (trainmaster_queue_depth{{{IN}}})", "{{pod}}"),
                        unit="short",
                        none=NOTHING_SCRAPED,
                    ),
                    curves(
                        8,
                        "How long jobs wait and a look takes",
                        "99 of 100 take at most so long. Good: below 0.1 s. Recoveries wait for this. A decision about "
                        "a failure lasts until the next round: where pods are replaced, their time is in it.",
                        [
                            Query(_slowest("queue_wait_seconds"), "wait"),
                            Query(_slowest("reconcile_seconds"), "look"),
                            Query(_slowest("recovery_decide_seconds"), "decision about a failure"),
                        ],
                        unit="s",
                        steps=((None, GREEN), (1, RED)),
                        colors={"wait": GREEN, "look": BLUE, "decision about a failure": ORANGE},
                        up_to=1.2,
                        none=NOTHING_SCRAPED,
                    ),
                    curves(
                        9,
                        "Looks at jobs by result",
                        "Per second. Good: ok, and a few conflicts. error: some job can't be handled; its condition "
                        "ReconcileError and the operator's log say why. unavailable: the API server does not answer.",
                        Query(_rate("reconcile_total", "result"), "{{result}}"),
                        unit="ops",
                        colors=RESULT_COLORS,
                        none=NOTHING_SCRAPED,
                    ),
                    curves(
                        10,
                        "Delay of the main loop",
                        "How much later than asked the operator's loop came back. Good: below 0.05 s, with single "
                        "peaks of some tenths. Above a second the operator has too little CPU.",
                        Query(f"max by (pod) (trainmaster_event_loop_lag_seconds{{{IN}}})", "{{pod}}"),
                        unit="s",
                        steps=((None, GREEN), (1, RED)),
                        up_to=1.2,
                        none=NOTHING_SCRAPED,
                    ),
                ],
            ),
            (
                "API server",
                102,
                [
                    curves(
                        11,
                        "Calls by status",
                        "Per second. Good: 200 and 201, a few 404 and 409. 403: the operator's roles are too narrow. "
                        "0 and 5xx: the API server is away.",
                        Query(_rate("api_calls_total", "code"), "{{code}}"),
                        unit="ops",
                        colors=CODE_COLORS,
                        none=NOTHING_SCRAPED,
                    ),
                    curves(
                        12,
                        "Time of a call by verb",
                        "99 of 100 take at most so long. Good: below 0.1 s, with single peaks of some tenths. Each "
                        "restart of a pod waits for several calls.",
                        Query(_slowest("api_call_seconds", by="verb"), "{{verb}}"),
                        unit="s",
                        steps=((None, GREEN), (1, RED)),
                        colors=VERB_COLORS,
                        up_to=1.2,
                        none=NOTHING_SCRAPED,
                    ),
                    curves(
                        13,
                        "Writes by what they are",
                        "Per second. Good: below some tens. progress is limited by the operator itself. intent "
                        "follows failures and edits of jobs.",
                        Query(_rate("api_writes_total", "what"), "{{what}}"),
                        unit="ops",
                        colors=WRITE_COLORS,
                        none="Nothing was written in this time",
                    ),
                    curves(
                        14,
                        "Silence of watches",
                        "Since the API server last sent anything. Good: below 60 s, since it sends a sign of life each "
                        "minute: where nothing changes the line is a saw-tooth. Above 180 s the operator sees nothing "
                        "any more.",
                        Query(f"max by (kind) (trainmaster_watch_age_seconds{{{IN}}} < Inf)", "{{kind}}"),
                        unit="s",
                        steps=((None, GREEN), (180, RED)),
                        colors=KIND_COLORS,
                        up_to=200,
                        none=NOTHING_SCRAPED,
                    ),
                ],
            ),
            (
                "Agents",
                103,
                [
                    curves(
                        15,
                        "Connected agents, and pods",
                        "Good: both lines are one. Fewer agents than pods: pods that start or have ended, an image "
                        "that can't be pulled, or a network that cuts agents off.",
                        [
                            Query(f"sum(trainmaster_agents_connected{{{IN}}})", "agents"),
                            Query(f"sum(trainmaster_pods{{{IN}}})", "pods"),
                        ],
                        unit="short",
                        colors={"agents": GREEN, "pods": BLUE},
                        decimals=0,
                        none=NOTHING_SCRAPED,
                    ),
                    curves(
                        16,
                        "Agents that were lost",
                        "Each one in one bar. Good: 0, or single ones. Many at once: a node, a rack or the network "
                        "went away; the runbook agents-lost says how to find it.",
                        Query(happened(f"trainmaster_agents_lost_total{{{IN}}}"), "lost"),
                        unit="short",
                        decimals=0,
                        colors={"lost": RED},
                        events=True,
                        none=NOTHING_SCRAPED,
                    ),
                    curves(
                        17,
                        "Requests of agents by result",
                        "Per second. Good: nearly all ok. Refused ones come from pods of jobs that are gone, or from a "
                        "stranger.",
                        Query(_rate("channel_requests_total", "result"), "{{result}}"),
                        unit="reqps",
                        colors=ANSWER_COLORS,
                        none=NOTHING_SCRAPED,
                    ),
                    curves(
                        18,
                        "Events about jobs",
                        "Per second, by result. Good: told (written) and counted. dropped: one job makes too many "
                        "of them. failed: the API server did not take them.",
                        Query(_rate("events_total", "result"), "{{result}}"),
                        unit="ops",
                        colors=EVENT_COLORS,
                        none="No event in this time",
                    ),
                ],
            ),
            (
                "What it uses",
                104,
                [
                    curves(
                        19,
                        "Memory",
                        "Good: flat, some 100 MB and a little per job. If it comes near the container's limit (1 GiB "
                        "by default), raise resources.limits.memory before the kernel ends the operator.",
                        Query(_process("process_resident_memory_bytes"), "{{pod}}"),
                        unit="bytes",
                        steps=((None, GREEN), (LIMIT_BYTES, RED)),
                        up_to=1.1 * LIMIT_BYTES,
                        none=NOTHING_SCRAPED,
                    ),
                    curves(
                        20,
                        "Processor cores",
                        "Good: far below 1. The operator's loop uses one core at most: at 1 jobs wait.",
                        Query(
                            f"rate(process_cpu_seconds_total{{{IN}}}[{_RECENT}]) "
                            f"and on (instance) trainmaster_leader{{{IN}}}",
                            "{{pod}}",
                        ),
                        unit="short",
                        steps=((None, GREEN), (0.9, RED)),
                        none=NOTHING_SCRAPED,
                    ),
                    curves(
                        21,
                        "Which operator leads",
                        "1 for the leader. Good: one line at 1 that never changes hands, except while nodes are "
                        "drained or the chart is upgraded.",
                        Query(f"max by (pod) (trainmaster_leader{{{IN}}})", "{{pod}}"),
                        unit="short",
                        decimals=0,
                        none=NOTHING_SCRAPED,
                    ),
                ],
            ),
        ],
        [took_over()],
    )
