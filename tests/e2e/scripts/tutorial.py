"""As PyTorch's tutorial on torchrun has it: a device for each local rank, and one snapshot for all of them."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
snapshots = Path(sys.argv[1])
if local_rank == 0:
    os.makedirs(snapshots)
dist.barrier()
model = DistributedDataParallel(torch.nn.Linear(8, 1).to(local_rank), device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(4, 8, device=f"cuda:{local_rank}")).mean().backward()
    optimizer.step()
if local_rank == 0:
    torch.save(model.module.state_dict(), snapshots / "snapshot.pt")
print("computed on", torch.cuda.get_device_properties(torch.cuda.current_device()).uuid, flush=True)
dist.destroy_process_group()
