"""What `test_commands.py` asks for where torch is imported already."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from unittest import mock


def side_of_a_killed_command(folder: str) -> int:
    """The pid of one side of a comparison on a device, which waits for its turn, of a command that was killed."""
    import torch

    from benchmarks.cuda import speed
    from tests.trainer.forks import forked

    told = Path(folder, "pid")

    def killed() -> None:
        with mock.patch.object(speed.ours, "train", lambda rank, folder, meter: meter.begin()):
            side = speed.System(speed.OURS, speed.CASES[0], speed.Blocks(), torch.device("cpu"), Path(folder))
        told.write_text(str(side._pid))
        os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(forked(killed), 0)
    return int(told.read_text())
