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


def grown(selector: str, by: str = "") -> str:
    """By how much a counter grew in the time shown, as a whole number: `increase()` stretches it to the whole time."""
    return f"sum{f' by ({by})' if by else ''} (round(increase({selector}[$__range])))"


def if_known(expr: str) -> str:
    """Nothing while no operator leads: then nobody tells of jobs."""
    return f"({expr}) and on () {LEADS}"


def or_unknown(expr: str, label: str) -> str:
    """The rows of a table, or one row that says in `label` that no operator leads."""
    nobody = "(sum(trainmaster_leader) < 1) * NaN"
    return f'{expr} or label_replace({nobody}, "{label}", "{UNKNOWN}", "", "")'
