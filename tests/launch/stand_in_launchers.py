"""Stand-ins for torch, accelerate, deepspeed and horovod, whose launchers say that they start a world of their own."""

from __future__ import annotations

from pathlib import Path

API = """
def launch_agent(config, entrypoint, args):
    raise SystemExit("a world of its own was started")


class Config:
    def __init__(self, nproc_per_node):
        self.nproc_per_node = nproc_per_node
"""
RUN = """
import os, sys
from torch.distributed.launcher import api


def main():
    os.environ["SET_BY_THE_LAUNCHER"] = "1"
    processes = int(sys.argv[1].partition("=")[2])
    api.launch_agent(api.Config(processes), sys.executable, ["-u", sys.argv[2], "--local-rank=${local_rank}"])


if __name__ == "__main__":
    main()
"""
DEEPSPEED = """
def main():
    raise SystemExit("a world of its own was started")


if __name__ == "__main__":
    main()
"""
HOROVOD = """
def _run(args):
    raise SystemExit("a world of its own was started")


def run_commandline():
    _run(None)


if __name__ == "__main__":
    run_commandline()
"""
ACCELERATE = """
import os
import sys


def simple_launcher(args):
    raise SystemExit("a world of its own was started")


def prepare_simple_launcher_cmd_env(args):
    return [sys.executable, *args], {**os.environ, "MASTER_PORT": "29500", "SET_BY_THE_LAUNCHER": "1"}


def main():
    simple_launcher(sys.argv[1:])


if __name__ == "__main__":
    main()
"""
HOROVOD_RUN = """
class Args:
    pass


def run(func, num_proc=1):
    from .launch import _run

    args = Args()
    args.run_func, args.num_proc = func, num_proc
    return _run(args)
"""
FILES = {
    # What a fork of a zygote reads again of torch.
    "torch/__init__.py": "def set_num_threads(_): ...\ndef initial_seed(): return 1\n",
    "torch/distributed/__init__.py": "",
    "torch/distributed/run.py": RUN,
    "torch/distributed/launcher/__init__.py": "from torch.distributed.launcher.api import Config, launch_agent\n",
    "torch/distributed/launcher/api.py": API,
    "accelerate/__init__.py": "",
    "accelerate/commands/__init__.py": "",
    "accelerate/commands/launch.py": ACCELERATE,
    "deepspeed/__init__.py": "",
    "deepspeed/launcher/__init__.py": "",
    "deepspeed/launcher/runner.py": DEEPSPEED,
    "horovod/__init__.py": "",
    "horovod/runner/__init__.py": HOROVOD_RUN,
    "horovod/runner/launch.py": HOROVOD,
}


def write(folder: Path) -> None:
    """Write the packages into a folder, which is to be in PYTHONPATH."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
