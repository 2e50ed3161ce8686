"""Event files for TensorBoard."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from trainmaster.contract.config import TensorBoardConfig
from trainmaster.errors import ConfigError
from trainmaster.loggers.logger_queue import Feed, Point, Say


class TensorBoard:
    def __init__(self, config: TensorBoardConfig, output: Path | None, say: Say) -> None:
        """Raises ConfigError if event files cannot be written at all."""
        self._say = say
        self._feed = Feed()
        self._folder = _folder(config, output)
        self._make = _event_writer()

    def begin(self, step: int) -> None:
        try:
            # The library names a file by the second and writes over one that is there: a restart can be quicker.
            unique = f".{time.time_ns()}"
            writer = self._make(logdir=str(self._folder), purge_step=step + 1, filename_suffix=unique)
        except OSError as error:
            raise ConfigError(
                f"loggers.tensorBoard.directory: {self._folder} can't be written to: {error.strerror or error}"
            ) from None
        self._feed.start(lambda: self._run(writer), "tensorboard")

    def put(self, point: Point) -> None:
        self._feed.put(point)

    def close(self, timeout_s: float | None, finished: bool) -> None:
        self._feed.close(timeout_s)

    def _run(self, writer: Any) -> None:
        try:
            while points := self._feed.take(1):
                for step, at, scalars in points:
                    for name, value in scalars.items():
                        writer.add_scalar(name, value, step, walltime=at)
                if self._feed.idle():
                    writer.flush()  # this process may be killed at any time
            writer.close()
        except Exception as error:  # noqa: BLE001 whatever a library raises, it's no reason to end a training
            self._say("LoggerFailed", f"nothing more for TensorBoard in {self._folder}: {error}")
            while self._feed.take(1):
                pass


def _folder(config: TensorBoardConfig, output: Path | None) -> Path:
    if config.directory is not None:
        return Path(config.directory)
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
            "loggers.tensorBoard needs the package tensorboardX in the image: pip install tensorboardX"
        ) from None
    return SummaryWriter
