"""A small job for tests: its folder, its config, and worlds of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.trainer.ranks import Outcome, Ranks
from trainmaster.contract.wire import environment


class Job:
    """One job's folder, config and environment; `round` runs a world of it."""

    def __init__(self, ranks: Ranks, output: Path, text: Path, **training: Any) -> None:
        self.ranks, self.output = ranks, output
        self.config = {
            "model": {"options": {"layers": 2, "width": 32, "heads": 2, "context": 32}},
            "data": {"path": str(text)},
            "steps": 9,
            "batch": {"global": 8, "micro": 2},
            "parallelism": {},
            "device": "CPU",
            "checkpoint": {"every": 3, "keep": 3},
            "optimizer": {"warmupSteps": 2, "lr": 1e-2},
            **training,
        }

    def round(self, number: int, world_size: int = 2, env: dict[str, str] | None = None, **how: Any) -> Outcome:
        variables = {
            environment.ROUND: str(number),
            environment.JOB_UID: "job",
            environment.CONFIG: json.dumps(self.config),
            environment.CHECKPOINT_DIR: str(self.output / "checkpoints"),
            environment.OUTPUT_DIR: str(self.output),
            **(env or {}),
        }
        return self.ranks.run(self.output, world_size, variables, **how)

    @property
    def final(self) -> dict[str, Any]:
        return json.loads((self.output / "final.json").read_text())

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.output / "metrics.jsonl").read_text().splitlines()]

    @property
    def losses(self) -> dict[int, float]:
        """By step; of a step that was run again, what the last round says."""
        return {line["step"]: line["loss"] for line in self.metrics if "loss" in line}  # evaluations have none

    def checkpoints(self) -> set[str]:
        return {p.parent.name for p in (self.output / "checkpoints").glob("step-*/manifest.json")}


Undisturbed = Callable[..., Job]
"""What the fixture of this name is."""
