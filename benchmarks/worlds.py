"""A world of our own loop, without an operator: its ranks as plain processes, which end with it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.ports import free_port
from trainmaster.contract.wire import environment
from trainmaster.host import processes as host_processes

RUN_LIMIT_S = 600


def train(
    config: dict[str, Any],
    ranks: int,
    *,
    inside: Callable[..., list[str]] = lambda rank, *command: [*command],
    address: str = "127.0.0.1",
    port: int = 0,
    interface: Callable[[int], str] = lambda rank: "lo",
) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl of a run to its end.

    A job that names no device trains on the CPU, whatever machine this is: its ranks speak over gloo.
    inside: what runs a rank's command where it is to run. port: 0 for one that is free. Raises SystemExit if a rank
    fails.
    """
    if not port:
        port = free_port(address)
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(ranks):
            env = {
                **os.environ,
                "MASTER_ADDR": address,
                "MASTER_PORT": str(port),
                "WORLD_SIZE": str(ranks),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(ranks),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": interface(rank),
                environment.CONFIG: json.dumps({"device": "CPU", **config}),
                environment.OUTPUT_DIR: folder,
            }
            command = inside(rank, sys.executable, "-m", "trainmaster.train.loop")
            tied = partial(host_processes.die_with_parent, os.getpid())
            processes.append(
                subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, start_new_session=True, preexec_fn=tied)
            )
        try:
            codes = [process.wait(timeout=RUN_LIMIT_S) for process in processes]
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if any(codes):
            raise SystemExit(f"ranks ended with {codes}")
        return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
