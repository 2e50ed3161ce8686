"""ddp_snapshot.py, whose rank 1 kills itself after its fifth step in the first round, as soon as ranks can be forked.

It needs nobody who counts steps: a script that a subprocess of its rank runs is not watched.
"""

import os
import pathlib
import runpy
import signal
import time

import uncompiled  # noqa: F401  spares the import of its compiler
from torch.optim.optimizer import register_optimizer_step_post_hook

steps = 0


def kill(*_: object) -> None:
    global steps
    steps += 1
    if steps == 5:
        while any("ranks are forked" not in log.read_text() for log in pathlib.Path("out/logs").glob("*-worker-*")):
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)


if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    register_optimizer_step_post_hook(kill)
runpy.run_path("ddp_snapshot.py", run_name="__main__")
