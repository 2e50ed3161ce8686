"""All loggers of a run as one, and the names under which they show its numbers. Rank 0 writes, in threads."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainmaster.contract.config import LoggersConfig
from trainmaster.loggers.logger_queue import Point, Say, Target
from trainmaster.loggers.mlflow import Mlflow
from trainmaster.loggers.tensorboard import TensorBoard


class Loggers:
    """The additional loggers of a run.

    `output` is the run's folder. `kept` is a folder that a process which continues the run finds again. `params` is the
    training config, for loggers that store it. `say` is called with (reason, message) once if writing fails; training
    continues without the logger.
    """

    def __init__(
        self,
        config: LoggersConfig | None,
        output: Path | None,
        say: Say = lambda reason, message: None,
        kept: Path | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises ConfigError if a logger cannot write at all."""
        self._begun: list[Target] = []
        self._targets: list[Target] = []
        if config is not None and config.tensorBoard is not None:
            self._targets.append(TensorBoard(config.tensorBoard, output, say))
        if config is not None and config.mlflow is not None:
            self._targets.append(Mlflow(config.mlflow, output, say, kept or output, params or {}))

    def begin(self, step: int) -> None:
        """Begin after `step`. What an earlier process wrote for later steps no longer counts.

        Raises ConfigError for a folder that cannot be written to.
        """
        for target in self._targets:
            target.begin(step)
            self._begun.append(target)

    def step(self, numbers: Mapping[str, Any]) -> None:
        """Log the numbers of a step, as metrics.jsonl has them."""
        if not self._begun:
            return
        rest = {f"train/{name}": float(value) for name, value in numbers.items() if name not in ("step", "seconds")}
        rest["train/tokens_per_second"] = numbers["tokens"] / max(numbers["seconds"], 1e-9)
        self._put(numbers["step"], rest)

    def evaluation(self, step: int, loss: float) -> None:
        self._put(step, {"evaluation/loss": loss})

    def close(self, timeout_s: float | None = None, finished: bool = False) -> None:
        """Write what is left. After this nothing is logged. With `finished`, no other process will continue this
        run."""
        begun, self._begun = self._begun, []
        end = None if timeout_s is None else time.monotonic() + timeout_s
        for target in begun:
            target.close(None if end is None else max(0.0, end - time.monotonic()), finished)

    def _put(self, step: int, scalars: dict[str, float]) -> None:
        point = Point(step, time.time(), scalars)
        for target in self._begun:
            target.put(point)
