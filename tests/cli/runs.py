"""Statuses and output folders of runs, made up."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import yaml

from tests.api.jobs import job
from trainmaster_operator.planning.facts.job_state import (
    Condition,
    Failure,
    JobPhase,
    JobState,
    ProgressStatus,
    Recovery,
    Restarts,
    Rung,
)
from trainmaster_operator.planning.status_mapping import write_status

CRASH = Failure(
    cause="Crash",
    rank=2,
    pod="tiny-worker-2-0",
    exitCode=-9,
    signal="SIGKILL",
    message="killed by SIGKILL",
    step=59,
    round=1,
    time="2026-11-21T15:00:20.000Z",
)
RECOVERY = Recovery(round=2, cause="Crash", rung=Rung.IN_PLACE, rank=2, pod="tiny-worker-2-0", step=59)
CLOSED = RECOVERY.model_copy(
    update={
        "resumedStep": 50,
        "tier": "peer",
        "lostSteps": 9,
        "totalSeconds": 0.287,
        "clock": {
            "detect": 0.012,
            "decide": 0.008,
            "fork": 0.05,
            "rendezvous": 0.08,
            "load": 0.05,
            "first_step": 0.087,
        },
    }
)


def status(phase: JobPhase = JobPhase.RUNNING, step: int = 60, **fields: Any) -> JobState:
    progress = ProgressStatus(step=step, totalSteps=100, loss="2.5", tokensPerSecond=12_345.0, etaSeconds=95.0)
    return JobState(phase=phase, round=1, progress=progress).model_copy(update=fields)


SUCCEEDED = status(
    JobPhase.SUCCEEDED,
    step=100,
    round=2,
    startTime="2026-11-21T15:00:00.000Z",
    completionTime="2026-11-21T15:01:30.500Z",
    restarts=Restarts(inPlace=1),
    recoveries=[CLOSED],
    lastFailure=CRASH,
    goodput="0.92",
    firstStepAt="2026-11-21T15:00:02.000Z",
    accountedAt="2026-11-21T15:01:30.000Z",
    usefulSeconds=81.0,
    lost={"Crash": 4.5, "Checkpoint": 1.5, "Resume": 1.0},
)


SHRUNK = Recovery(round=3, cause="NodeLost", rung=Rung.SHRINK, pod="tiny-worker-3-0", step=80)
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 12, in <module>
    raise ValueError("the weights of layer 7 are missing")
ValueError: the weights of layer 7 are missing"""
RAISED = CRASH.model_copy(
    update={
        "exitCode": 1,
        "signal": "",
        "message": "ValueError: the weights of layer 7 are missing",
        "traceback": TRACEBACK,
    }
)


def failed_run(folder: Path) -> Path:
    """What a run leaves whose script raised an error before it completed a step."""
    condition = Condition(
        type="Failed", status="True", reason="Crash", message="Crash of rank 2; a third try would not help"
    )
    final = JobState(phase=JobPhase.FAILED, round=2, lastFailure=RAISED, conditions=[condition])
    out = output_folder(folder, final)
    (out / "metrics.jsonl").unlink()
    (out / "memory.json").unlink()
    (out / "logs").mkdir(exist_ok=True)
    lines = [
        "[rank 3] I am another rank",
        "[rank 2] loading layer 6",
        *(f"[rank 2] {x}" for x in TRACEBACK.split("\n")),
    ]
    (out / "logs" / "tiny-worker-2-0.log").write_text("\n".join(lines) + "\n")
    return out


def long_run(folder: Path, steps: int, restarts: int) -> Path:
    """What a run leaves that had many restarts. Each lost 50 steps of 2.5 s, and the status remembers the last 16."""
    known = [
        CLOSED.model_copy(update={"round": number + 2, "step": 0, "totalSeconds": 20.0})
        for number in range(restarts - 16, restarts)
    ]
    final = SUCCEEDED.model_copy(update={"restarts": Restarts(inPlace=restarts), "recoveries": known})
    out = output_folder(folder, final)
    every = steps // (restarts + 1)
    with (out / "metrics.jsonl").open("w") as file:
        for number in range(restarts + 1):
            for step in range(max(1, number * every - 50), (number + 1) * every):
                loss = 2 + math.sin(step)
                file.write(
                    f'{{"step": {step}, "round": {number + 1}, "loss": {loss}, "tokens": 1024, "seconds": 2.5}}\n'
                )
    return out


def output_folder(folder: Path, final: JobState = SUCCEEDED, steps: int = 100, name: str = "tiny") -> Path:
    """What a run leaves: killed at step 60, went on from 50."""
    folder.mkdir(parents=True, exist_ok=True)
    resource = {**job(metadata__name=name), "status": write_status(final)}
    (folder / "status.yaml").write_text(yaml.safe_dump(resource))
    with (folder / "metrics.jsonl").open("w") as file:
        for first, last, round in ((1, steps * 6 // 10 - 1, 1), (steps // 2 + 1, steps, 2)):
            for step in range(first, last + 1):
                loss = 2 + 3 * math.exp(-step / (steps / 5))
                record = {"step": step, "round": round, "loss": loss, "tokens": 1024, "seconds": 0.05}
                file.write(json.dumps(record) + "\n")
    samples = [[1000.0 + i, {str(rank): 4e8 + rank * 1e7 + i * 1e5 for rank in range(4)}] for i in range(50)]
    (folder / "memory.json").write_text(json.dumps({"intervalSeconds": 0, "samples": samples}))
    return folder
