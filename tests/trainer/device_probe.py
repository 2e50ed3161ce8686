"""A rank on a machine with faked devices: it joins the others as our loop does, and says which device it got."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.faked_cuda.site import faked_devices
from trainmaster.train.process_group import World

faked_devices.install()
world = World.join("Auto")
ranks = torch.ones(1, device=world.device)
dist.all_reduce(ranks)
print(f"rank {world.rank} of {int(ranks)}: {world.words or 'no words'}", flush=True)
dist.destroy_process_group()
