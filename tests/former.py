"""The status of a job as the version before the first release wrote it."""

from __future__ import annotations

from typing import Any


def former_status(phase: str = "Running", **fields: Any) -> dict[str, Any]:
    """Return the status of a job of two pods: flat, with empty fields, and with words for some that are groups now."""
    trains = phase == "Running"
    return {
        "observedGeneration": 1,
        "phase": phase,
        "leaderEpoch": 1,
        "round": 2,
        "roundMap": "0-1",
        "roundMinor": 0,
        "roundStore": "10.0.0.1:4000" if trains else "",
        "incarnations": "0*2",
        "revision": "job-5f7c",
        "revisions": ["job-5f7c"],
        "avoidNodes": [],
        "stopBound": False,
        "startTime": "2026-01-01T00:00:00.000Z",
        "completionTime": "" if trains or phase == "Suspended" else "2026-01-01T01:00:00.000Z",
        "workers": {"replicas": 2, "ready": 2, "selector": "trainmaster.dev/job=job,trainmaster.dev/role=worker"},
        "progress": {"step": 8, "totalSteps": 100, "loss": "2.5", "highestStep": 8},
        "restarts": {"inPlace": 1, "free": 0, "total": 1},
        "recoveries": [{"round": 2, "cause": "Crash", "rung": "inPlace", "totalSeconds": 0.3, "clock": {"fork": 0.1}}],
        "lost": {},
        "goodput": "0.93",
        "conditions": [
            {
                "type": phase,
                "status": "True",
                "reason": phase,
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:05.000Z",
            }
        ],
        **fields,
    }
