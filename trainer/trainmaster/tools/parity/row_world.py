"""The ranks of a row: processes forked from this one."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from trainmaster.agent.shell.launching.rank_environment import loopback_variables
from trainmaster.contract.config import TrainingConfig
from trainmaster.tools.parity.row_training import train
from trainmaster.tools.parity.rows import Row

PR_SET_PDEATHSIG = 1  # linux/prctl.h
TIMEOUT = timedelta(seconds=60)


def run(row: Row, config: TrainingConfig, work: Callable[[TrainingConfig, Row, int], Any] = train) -> list[Any]:
    """Return what `work` returns on all ranks, each of which is a process forked from this one.

    This process must not have run torch operations, because a used pool of OpenMP threads hangs after a fork.
    """
    context = multiprocessing.get_context("fork")
    # Rank 0 hosts the store on a socket that is bound before the fork: so no port can be taken meanwhile, and this
    # process gets no thread (a fork of a process with a store's thread can hang).
    listener = socket.create_server(("127.0.0.1", 0), backlog=row.ranks)
    started = []
    for rank in range(row.ranks):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(row, config, rank, work, listener, theirs), daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
    listener.close()
    try:
        return [_outcome(row, rank, pipe) for rank, (_, pipe) in enumerate(started)]
    finally:
        for process, _ in started:
            process.kill()
            process.join()


def _rank(
    row: Row,
    config: TrainingConfig,
    rank: int,
    work: Callable[[TrainingConfig, Row, int], Any],
    listener: socket.socket,
    pipe: Connection,
) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    try:
        if row.parallelism and not row.devices:
            port = listener.getsockname()[1]
            hosts = {"is_master": True, "master_listen_fd": listener.detach()} if rank == 0 else {"is_master": False}
            store = dist.TCPStore("127.0.0.1", port, timeout=TIMEOUT, wait_for_workers=False, **hosts)
            os.environ.update({**loopback_variables(), **os.environ})
            dist.init_process_group("gloo", store=store, rank=rank, world_size=row.ranks, timeout=TIMEOUT)
        pipe.send(work(config, row, rank))
    except BaseException:  # noqa: BLE001 a forked rank must never go on into its parent's code
        traceback.print_exc()
        os._exit(1)
    signal.pause()  # until killed: who leaves early cuts its peers off


def _outcome(row: Row, rank: int, pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError(f"{row}: rank {rank} died, see its traceback above") from None
