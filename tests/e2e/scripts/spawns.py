"""A script that starts a rank of its own and meets it at an address of its own. Knows nothing of Trainmaster."""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank: int, port: int) -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    total = torch.ones(1)
    dist.all_reduce(total)
    if rank == 0:
        print(f"{int(total)} ranks met, one of them spawned", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawned = mp.get_context("spawn").Process(target=work, args=(1, port))
    spawned.start()
    work(0, port)
    spawned.join()
    raise SystemExit(spawned.exitcode)
