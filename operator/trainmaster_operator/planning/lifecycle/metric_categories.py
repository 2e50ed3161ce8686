"""The names under which metrics of a single job report causes of failures, phases of recoveries and lost time: a few
categories of each, so that a job has few series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainmaster.contract.wire import Cause
from trainmaster_operator.planning.lifecycle.goodput import CHECKPOINT

OTHER = "Other"
RESIZED = "Resized"  # The cause of a recovery that is no answer to a failure.

FAILURES: Mapping[str, str] = {
    Cause.CRASH.value: "Crash",
    Cause.OUT_OF_MEMORY.value: "OutOfMemory",
    Cause.HANG.value: "Hang",
    Cause.STRAGGLER.value: "Straggler",
    Cause.HARDWARE_FAULT.value: "HardwareFault",
    Cause.NODE_LOST.value: "NodeLost",
    Cause.AGENT_LOST.value: "NodeLost",
    Cause.PREEMPTED.value: "Preempted",
    Cause.EVICTED.value: "Preempted",
    Cause.DIVERGED.value: "Diverged",
    Cause.DATA_ERROR.value: "DataError",
    Cause.CONFIG_ERROR.value: "ConfigError",
    Cause.IMAGE_ERROR.value: "ConfigError",
    Cause.UNSCHEDULABLE.value: "ConfigError",
    Cause.REFUSED.value: "ConfigError",
}
"""The name under which metrics of a single job report a cause. All other causes are `Other`, so there are at most
eleven names."""

FAILURE_WORDS = (*dict.fromkeys(FAILURES.values()), OTHER)

PHASES: Mapping[str, str] = {
    "detect": "detect",
    "decide": "detect",
    "drain": "schedule",
    "schedule": "schedule",
    "start": "start",
    "fork": "start",
    "imports": "start",
    "rendezvous": "rendezvous",
    "build": "load",
    "load": "load",
    "first_step": "first_step",
}
"""The name under which metrics of a single job report a phase of a recovery's clock; there are six names."""

PHASE_WORDS = tuple(dict.fromkeys(PHASES.values()))

LOSSES: Mapping[str, str] = {
    Cause.HARDWARE_FAULT.value: "hardware",
    Cause.NODE_LOST.value: "hardware",
    Cause.AGENT_LOST.value: "hardware",
    Cause.PREEMPTED.value: "preemption",
    Cause.EVICTED.value: "preemption",
    CHECKPOINT: "checkpoint",
    Cause.CHECKPOINT_FAILED.value: "checkpoint",
    Cause.STRAGGLER.value: "straggler",
    **dict.fromkeys(
        (
            *(Cause.CRASH.value, Cause.OUT_OF_MEMORY.value, Cause.HANG.value, Cause.DIVERGED.value),
            *(Cause.DATA_ERROR.value, Cause.CONFIG_ERROR.value, Cause.IMAGE_ERROR.value, Cause.UNSCHEDULABLE.value),
            *(Cause.REFUSED.value, Cause.STORE_LOST.value, Cause.FENCED.value, RESIZED),
        ),
        "restart",
    ),
}
"""The category of lost time to which a cause belongs. All other causes, such as evaluations, are `other`."""

RESTART = "restart"
SET_ASIDE: Mapping[str, str] = {
    "detect": "detection",
    "decide": "detection",
    "schedule": "queue",
    "load": "checkpoint",
}
"""Phases of a recovery whose time metrics do not report as `restart`: the failure was not detected yet, pods waited
for a place, or state was read."""

LOSS_WORDS = ("hardware", "preemption", "checkpoint", "straggler", "detection", "queue", RESTART, "other")


def grouped(values: Mapping[str, float], words: Mapping[str, str], all_words: Iterable[str]) -> dict[str, float]:
    """Return the sum of `values` for each of `all_words`. `words` gives the word of each name; a name without a word
    counts for the last word."""
    found = dict.fromkeys(all_words, 0.0)
    last = next(reversed(found))
    for name, value in values.items():
        found[words.get(name, last)] += value
    return found
