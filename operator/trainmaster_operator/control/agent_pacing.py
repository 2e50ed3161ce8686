"""How often agents may report, how long their polls are held, and how long their news wait for a pass.

All of it grows with the number of agents, so that one process can serve thousands of them.
"""

from __future__ import annotations

from trainmaster.contract.wire import Report

CROWD = 64  # Number of agents of a job from which on their small news wait for each other.
PASS_S_PER_AGENT = 50e-6
PATIENCE = 4.0
PATIENCE_FOR_PROGRESS = 16.0
"""In a crowd, small news wait for PATIENCE times the duration of a pass, and progress alone for this many times, so
that passes leave time to serve agents."""
RECENT_S = 30.0  # An agent that was heard within this time will be heard again, so it counts as one of the crowd.
REPORTS_PER_S = 400  # Regular reports of all agents together; urgent reports are additional.
POLLS_PER_S = 200  # Polls of all agents together that end without news.
MOST_HOLD_S = 20.0  # Agents wait for twice as long.
_GOLDEN = (5**0.5 - 1) / 2  # Its multiples, modulo 1, are spread evenly over [0, 1), however many there are.


def is_urgent(report: Report, round: int) -> bool:
    """Return whether a decision is due because of the report. When a rank dies in a large world, thousands of agents
    report that they lost a peer; that decides nothing by itself, and such reports still arrive when the next round
    is open."""
    verdict = report.verdict
    cause = verdict is not None and not verdict.cascade and verdict.round >= round
    return cause or report.store_lost or report.draining_s is not None


def poll_hold_s(hold_s: float, crowd: int, slot: int) -> float:
    """Return for how many seconds a poll is held. It differs between slots, so that polls that one round has
    answered together do not end together.

    `hold_s`: the least of it without a crowd. `crowd`: the number of agents that were heard recently.
    """
    longest_s = max(hold_s, min(crowd / POLLS_PER_S, MOST_HOLD_S))
    return longest_s * (1.0 - slot * _GOLDEN % 1.0 / 2)


def report_interval_s(crowd: int) -> float:
    """Return the minimum number of seconds between two reports of each of `crowd` agents."""
    return crowd / REPORTS_PER_S


def news_delay_s(agents: int) -> float:
    """Return for how many seconds small news of one of a job's agents wait for those of others: 0 unless it has a
    crowd of agents."""
    return 0.0 if agents < CROWD else PATIENCE * _pass_s(agents)


def progress_delay_s(agents: int) -> float:
    """Return for how many seconds progress of a job with so many agents waits for a pass."""
    return PATIENCE_FOR_PROGRESS * _pass_s(agents)


def _pass_s(agents: int) -> float:
    return agents * PASS_S_PER_AGENT
