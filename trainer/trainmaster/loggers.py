"""Numbers of a run for TensorBoard, beside metrics.jsonl. Rank 0 writes them, in a thread: no step waits for a disk."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainmaster.contract.config import LoggersConfig
from trainmaster.errors import ConfigError

Scalars = dict[str, float]


class Loggers:
    """`say`: told (reason, message) once if writing fails; training goes on without."""

    def __init__(
        self,
        config: LoggersConfig | None,
        output: Path | None,
        say: Callable[[str, str], None] = lambda reason, message: None,
    ) -> None:
        """Raises ConfigError for what can't be written at all."""
        self._say = say
        self._work: queue.Queue[tuple[int, float, Scalars] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._folder = _folder(config, output)
        self._make = _event_writer() if self._folder is not None else None

    def begin(self, step: int) -> None:
        """Training goes on from `step`: what an earlier process wrote of later ones counts no more. Raises ConfigError
        for a folder that can't be written to."""
        if self._make is None:
            return
        try:
            # The library names a file by the second and writes over one that is there: a restart can be quicker.
            unique = f".{time.time_ns()}"
            writer = self._make(logdir=str(self._folder), purge_step=step + 1, filename_suffix=unique)
        except OSError as error:
            raise ConfigError(
                f"loggers.tensorBoard.directory: {self._folder} can't be written to: {error.strerror or error}"
            ) from None
        self._thread = threading.Thread(target=self._run, args=(writer,), name="loggers", daemon=True)
        self._thread.start()

    def step(self, numbers: Mapping[str, Any]) -> None:
        """The numbers of a step, as metrics.jsonl has them."""
        if self._thread is None:
            return
        rest = {f"train/{name}": float(value) for name, value in numbers.items() if name not in ("step", "seconds")}
        rest["train/tokens_per_second"] = numbers["tokens"] / max(numbers["seconds"], 1e-9)
        self._work.put((numbers["step"], time.time(), rest))

    def evaluation(self, step: int, loss: float) -> None:
        if self._thread is not None:
            self._work.put((step, time.time(), {"evaluation/loss": loss}))

    def close(self, timeout_s: float | None = None) -> None:
        """Write what is left. After this nothing is taken any more."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._work.put(None)
            thread.join(timeout_s)

    def _run(self, writer: Any) -> None:
        try:
            while (told := self._work.get()) is not None:
                step, at, scalars = told
                for name, value in scalars.items():
                    writer.add_scalar(name, value, step, walltime=at)
                if self._work.empty():
                    writer.flush()  # this process may be killed at any time
            writer.close()
        except Exception as error:  # noqa: BLE001 whatever a library raises, it's no reason to end a training
            self._say("LoggerFailed", f"nothing more for TensorBoard in {self._folder}: {error}")
            while self._work.get() is not None:
                pass


def _folder(config: LoggersConfig | None, output: Path | None) -> Path | None:
    if config is None or config.tensorBoard is None:
        return None
    if config.tensorBoard.directory is not None:
        return Path(config.tensorBoard.directory)
    if output is None:
        raise ConfigError(
            "loggers.tensorBoard: this run has no output folder to write to; loggers.tensorBoard.directory would name "
            "one"
        )
    return output / "tensorboard"


def _event_writer() -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise ConfigError(
            "loggers.tensorBoard needs the package tensorboardX in the image: pip install 'trainmaster[loggers]'"
        ) from None
    return SummaryWriter
