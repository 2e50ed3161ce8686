"""Starts a script by torch's launcher: in this process, or by a subprocess, as the first word says."""

import subprocess
import sys

with open("/proc/self/cmdline") as line:
    print("launches", "executed" if "executed_rank" in line.read() else "forked", flush=True)
way, *script = sys.argv[1:]
line = ["--standalone", "--nproc-per-node=1", *script]
if way == "subprocess":
    sys.exit(subprocess.call([sys.executable, "-m", "torch.distributed.run", *line]))
from torch.distributed.run import main  # noqa: E402

main(line)
