"""Two ranks add up their numbers twenty times. In the first attempt rank 1 is killed half way."""

import os
import signal

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, first = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(20):
    total = torch.tensor([float(rank + step)])
    dist.all_reduce(total)
    assert total.item() == 2 * step + 1
    if rank == 1 and step == 10 and first:
        os.kill(os.getpid(), signal.SIGKILL)
print(f"rank {rank} has done all steps", flush=True)
dist.destroy_process_group()
