"""What is wrong now, in words, with the command that a person types first and the runbook that goes on from there.

Each sign is an expression that has a series only while something is wrong. The names of the job and its namespace are
put into the command by Prometheus, so that it can be copied from the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from charts.dashboards.promql import increase

RESTARTS = 3
"""Failures of one cause within an hour from which on a job fails again and again."""
NO_STEP = "5m"
"""A job that runs and has made no step for so long stands still. The alert waits for an hour."""
MEMORY_BYTES = 800 * 2**20
"""Of the operator, whose container has a limit of 1 GiB by default."""

_CONDITIONS = (
    ("Failed", "job-failed"),
    ("Held", "job-held"),
    ("ReconcileError", "operator-errors"),
    ("CheckpointFailed|CheckpointStalled", "job-checkpoint-old"),
)
_UNABLE = (
    ("ImageError", "Its image can't be pulled"),
    ("ConfigError", "Its pods miss something"),
    ("QuotaExceeded", "Its quota has no room for its pods"),
    ("Refused", "The cluster refuses its pods"),
    ("WebhookFailed", "A webhook keeps its pods out"),
    ("NamespaceTerminating", "Its namespace is deleted"),
)
"""Reasons for which a job waits and that a person has to remove."""
_LOGS = "kubectl logs deployment/trainmaster-operator -n"
_STRAGGLER = "-o jsonpath='{.status.internal.straggler}'"
_ALL_OPERATORS = 'namespace=~".*"'

_STANDS = (
    *("Failed", "Held", "No operator", "It runs, and makes no step", "It fails again", "Its loss", "Its manifest"),
    *(words for _, words in _UNABLE),
)
COLORS = {f"^({'|'.join(_STANDS)})": "red", ".*": "orange"}
"""Of signs, by regular expressions: red where a job or an operator does nothing of use, or soon will not."""


def of_jobs(matchers: str) -> str:
    """What is wrong with the jobs that `matchers` select, and with any operator: series with the labels namespace, job,
    sign, command and runbook."""
    return _joined(("namespace", "job"), [*_signs_of_jobs(matchers), *_signs_of_operators(_ALL_OPERATORS)])


def by_job(matchers: str) -> str:
    """The number of signs of each job that has some."""
    return f"count by (namespace, job) ({_joined(('namespace', 'job'), _signs_of_jobs(matchers))})"


def jobs_that_need_a_person(matchers: str) -> str:
    """The jobs that go on badly, or not at all, until a person does something."""
    return f"max by (namespace, job) ({' or '.join(_that_need_a_person(matchers))})"


def of_one_job(matchers: str) -> str:
    """The same as `of_jobs` for a single job, whose name needs no column."""
    return _joined((), [*_signs_of_jobs(matchers), _no_leader("trainmaster_leader")])


def of_operators(matchers: str) -> str:
    """What is wrong with the operators that `matchers` select."""
    return _joined(("namespace", "pod"), [*_signs_of_operators(matchers), _lost_agents(matchers)])


def _signs_of_jobs(of: str) -> Iterator[str]:
    yield from _that_need_a_person(of)
    yield from _that_may_pass(of)


def _that_need_a_person(of: str) -> Iterator[str]:
    for conditions, runbook in _CONDITIONS:
        found = (
            f'max by (namespace, job, condition, reason) (trainmaster_job_condition{{{of}, condition=~"{conditions}"}})'
        )
        yield _status(_words(f"{found} == 1", "", "condition", "reason"), runbook)
    unreadable = f'max by (namespace, job) (trainmaster_job_phase{{{of}, phase="Unreadable"}})'
    yield _status(_sign(unreadable, "Its manifest can't be read"), "operator-errors")
    for reason, words in _UNABLE:
        waits = f'max by (namespace, job, reason) (trainmaster_job_pending_seconds{{{of}, reason="{reason}"}} > 30)'
        yield _status(_words(waits, words, "reason"), "job-pending")
    stands_still = (
        f"max by (namespace, job) (changes(trainmaster_job_step{{{of}}}[{NO_STEP}])) == 0 "
        f"and on (namespace, job) max by (namespace, job) (trainmaster_job_step{{{of}}} offset {NO_STEP}) "
        f'and on (namespace, job) max by (namespace, job) (trainmaster_job_phase{{{of}, phase="Running"}})'
    )
    yield _status(_sign(stands_still, "It runs, and makes no step"), "job-no-progress")
    yield _status(_sign(_not_a_number(f"trainmaster_job_loss{{{of}}}"), "Its loss is not a number"), "job-failed")
    for causes, runbook in (
        ('cause!~"OutOfMemory|NodeLost"', "job-goodput-low"),
        ('cause="OutOfMemory"', "job-memory-full"),
    ):
        again = f"round({increase('failures_total', f'{of}, {causes}', '1h')}) >= {RESTARTS}"
        yield _status(_words(again, "It fails again and again", "cause"), runbook)
    slow = f"max by (namespace, job) (trainmaster_job_straggler_slowdown{{{of}}}) > 1.5"
    yield _about(
        _sign(slow, "One rank is slow, and all others wait for it"), "job-straggler", "kubectl get dtj", _STRAGGLER
    )
    save = f'max by (namespace, job) (trainmaster_job_checkpoint_duration_seconds{{{of}, tier="storage"}})'
    quickest = (
        "max by (namespace, job) "
        f'(min_over_time(trainmaster_job_checkpoint_duration_seconds{{{of}, tier="storage"}}[$__range]))'
    )
    yield _status(
        _sign(f"{save} > 10 and {save} > 3 * {quickest}", "Storage is slow: saves take ever longer"),
        "job-checkpoint-old",
    )
    old = f'max by (namespace, job) (trainmaster_job_checkpoint_age_seconds{{{of}, tier="storage"}}) > 7200'
    yield _status(_sign(old, "Its newest checkpoint is old"), "job-checkpoint-old")
    full = f'max by (namespace, job) (trainmaster_job_memory_used_ratio{{{of}, what="container"}}) > 0.95'
    yield _status(_sign(full, "A container is nearly out of memory"), "job-memory-full")


def _that_may_pass(of: str) -> Iterator[str]:
    known = "|".join(("Starting", "Suspended", *(reason for reason, _ in _UNABLE)))
    waits = (
        f'max by (namespace, job, reason) (trainmaster_job_pending_seconds{{{of}, reason!~"{known}"}} > 30 '
        f'or trainmaster_job_pending_seconds{{{of}, reason="Starting"}} > 600)'
    )
    yield _status(_words(waits, "It waits for its pods", "reason"), "job-pending")
    node_lost = f'{of}, cause="NodeLost"'
    lost = f"sum by (namespace, job) ({increase('failures_total', node_lost, '1h')})"
    told = _sign(f"{lost} > 0.5", "It lost a pod with its node in the last hour")
    yield _command(told, "agents-lost", "kubectl get nodes")


def _lost_agents(of: str) -> str:
    lost = f"sum by (namespace) (round(increase(trainmaster_agents_lost_total{{{of}}}[1h]))) > 1"
    return _command(_sign(lost, "Several agents were lost in the last hour"), "agents-lost", "kubectl get nodes")


def _signs_of_operators(of: str) -> Iterator[str]:
    operators = f"trainmaster_leader{{{of}}}"
    yield _no_leader(operators)
    restarts = (
        f"sum by (namespace, pod) (changes(process_start_time_seconds{{{of}}}[1h]) "
        f"and on (instance) last_over_time({operators}[1h])) >= 2"
    )
    memory = (
        f"max by (namespace, pod) (process_resident_memory_bytes{{{of}}} and on (instance) {operators}) "
        f"> {MEMORY_BYTES}"
    )
    for expr, sign in (
        (restarts, "An operator starts again and again"),
        (memory, "The memory of an operator is above 800 MiB"),
    ):
        yield _about(_sign(expr, sign), "operator-down", "kubectl describe pod", "", name="pod")
    calls = f'trainmaster_api_calls_total{{{of}, code=~"0|403|5..", verb!="create"}}'
    failing = f"sum by (namespace, code) (increase({calls}[1h])) > 5"
    told = _words(failing, "The operator's calls fail, with code", "code")
    yield _of_operator(told, "operator-errors", _LOGS)
    errors = f'sum by (namespace) (increase(trainmaster_reconcile_total{{{of}, result="error"}}[1h])) > 0'
    told = _sign(errors, "The operator can't handle some job")
    yield _of_operator(told, "operator-errors", _LOGS)
    stale = f"max by (namespace, pod) (trainmaster_watch_age_seconds{{{of}}} < Inf) > 180"
    told = _sign(stale, "An operator receives nothing from the API server")
    yield _of_operator(told, "operator-slow", _LOGS)


def _no_leader(operators: str) -> str:
    told = _sign(f"sum by (namespace) ({operators}) < 1", "No operator leads")
    return _of_operator(told, "operator-down", "kubectl get lease trainmaster-operator -n")


def _joined(names: Sequence[str], signs: Iterable[str]) -> str:
    labels = ", ".join((*names, "sign", "command", "runbook"))
    return f"max by ({labels}) ({' or '.join(signs)})"


def _not_a_number(series: str) -> str:
    """Nothing equals NaN, not even itself."""
    return f"max by (namespace, job) ({series} != {series})"


# -- labels


def _set(expr: str, label: str, value: str) -> str:
    return f'label_replace({expr}, "{label}", "{value}", "", "")'


def _sign(expr: str, sign: str) -> str:
    return _set(expr, "sign", sign)


def _words(expr: str, before: str, *labels: str) -> str:
    """A sign of some words and the values of labels."""
    if before:
        expr, labels = _set(expr, "before", before), ("before", *labels)
    named = ", ".join(f'"{label}"' for label in labels)
    return f'label_join({expr}, "sign", ": ", {named})'


def _command(expr: str, runbook: str, command: str) -> str:
    return _set(_set(expr, "runbook", runbook), "command", command)


def _status(expr: str, runbook: str) -> str:
    return _about(expr, runbook, "trainmaster status", "")


def _about(expr: str, runbook: str, verb: str, end: str, name: str = "job") -> str:
    """The command `VERB NAME -n NAMESPACE END`."""
    labelled = _set(_set(_set(expr, "runbook", runbook), "verb", verb), "flag", "-n")
    parts = ["verb", name, "flag", "namespace"]
    if end:
        labelled, parts = _set(labelled, "end", end), [*parts, "end"]
    named = ", ".join(f'"{part}"' for part in parts)
    return f'label_join({labelled}, "command", " ", {named})'


def _of_operator(expr: str, runbook: str, verb: str) -> str:
    """The command `VERB NAMESPACE`."""
    labelled = _set(_set(expr, "runbook", runbook), "verb", verb)
    return f'label_join({labelled}, "command", " ", "verb", "namespace")'
