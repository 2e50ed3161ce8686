"""Expressions that several dashboards need: whole counts of events, and what is not known while no operator leads."""

from __future__ import annotations

LEADS = "(sum(trainmaster_leader) > 0)"
UNKNOWN = "not known: no operator leads"


def leaders(matchers: str = "") -> str:
    """How many operators lead in a namespace of operators, which is 1 if all is well: the lowest number if that is 0,
    else the highest. Each release of the chart has a namespace and a leader of its own."""
    each = f"sum by (namespace) (trainmaster_leader{f'{{{matchers}}}' if matchers else ''})"
    return f"min({each}) < 1 or max({each})"


def before(selector: str) -> str:
    """The value at the point before. If a scrape failed there, or no operator led, the last one that is known."""
    return f"last_over_time({selector}[$__rate_interval] offset $__interval)"


def happened(selector: str, by: str = "", of: str = "") -> str:
    """How often a counter was raised since the point before, as a curve of whole numbers: one event is in one point.

    `increase()` would show it in each point whose window has it, and stretched to the length of that window. `by`: the
    labels that are summed over. `of`: the labels that name a counter, whichever operator tells of it; "": all of them.
    A counter that fell has begun again at 0.
    """
    now, then = selector, before(selector)
    if of:
        now, then = f"max by ({of}) ({now})", f"max by ({of}) ({then})"
    return f"sum{f' by ({by})' if by else ''} ({now} - {then} >= 0 or {now} < {then})"


OWN_LABELS = {
    "failures_total": "cause",
    "restarts_total": "rung",
    "recovery_seconds_total": "phase",
    "lost_seconds_total": "category",
}
"""The label of a job's counter that is neither the name of the job nor its namespace. Other counters have none."""


def increase(name: str, matchers: str, window: str = "$__range") -> str:
    """By how much a counter in the status of jobs grew, for each of its label values.

    Each leader reads it from the status, so the counters of all replicas are one. A replica that leads again goes on in
    the series of its first lead: `increase()` of each series would count once more what happened under another leader.
    """
    labels = ", ".join(filter(None, ("namespace", "job", OWN_LABELS.get(name))))
    counter = f"trainmaster_job_{name}{{{matchers}}}"
    if window == "$__range":  # It may be so short that a subquery, with a point each minute, would have none.
        return f"increase({counter}[$__range])"
    return f"increase((max by ({labels}) ({counter}))[{window}:])"


def grown(name: str, matchers: str, by: str = "", window: str = "$__range") -> str:
    """By how much such a counter grew, as a whole number: `increase()` stretches it to the whole window. `by`: the
    labels that are summed over."""
    return f"sum{f' by ({by})' if by else ''} (round({increase(name, matchers, window)}))"


def if_known(expr: str) -> str:
    """Nothing while no operator leads: then nobody tells of jobs."""
    return f"({expr}) and on () {LEADS}"


def or_unknown(expr: str, label: str) -> str:
    """The rows of a table, or one row that says in `label` that no operator leads."""
    nobody = "(sum(trainmaster_leader) < 1) * NaN"
    return f'{expr} or label_replace({nobody}, "{label}", "{UNKNOWN}", "", "")'
