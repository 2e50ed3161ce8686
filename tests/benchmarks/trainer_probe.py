"""The benchmark of the trainer's speed with ranks that are forked: called by `test_trainer.py` where they can be."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import trainer
from benchmarks.trainer_systems.__main__ import main
from tests.trainer.forks import forked

WORDS = ["--rounds", "3", "--steps", "1", "--layers", "2", "--width", "32", "--context", "16", "--batch", "8"]
TINY = argparse.Namespace(**{**vars(trainer.read(WORDS)), "starts": 2})


def compare(row: str) -> list[dict[str, Any]]:
    """The samples of ours and of hand-written torch in a row: [{system, speed, work}]."""
    with mock.patch.object(trainer, "start_rank", Fork):
        samples = trainer.compare(row, ["trainmaster", "torch"], TINY)
    return [{"system": each.speed.system, "speed": each.speed.samples, "work": each.work.samples} for each in samples]


class Fork:
    """A rank that has nothing to import."""

    def __init__(self, arguments: list[str], environment: dict[str, str], ends: tuple[int, int], output: Path) -> None:
        def run() -> None:
            file = os.open(output, os.O_WRONLY | os.O_CREAT)
            os.dup2(file, 1)
            os.dup2(file, 2)
            for name in os.listdir("/proc/self/fd"):
                if int(name) not in (0, 1, 2, *ends):  # a rank that dies must be the only one that has its end
                    with contextlib.suppress(OSError):
                        os.close(int(name))
            os.environ.update(environment)
            sys.argv = ["trainer_systems", *arguments]
            main()

        self.pid = forked(run)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
