"""FSDP2 with torch's distributed checkpoints, as torch's tutorials have it. Knows nothing of Trainmaster."""

import hashlib
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, EVERY = 12, 4

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
for layer in (*model, model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

step, newest = 0, Path("checkpoints/newest")
if newest.exists():
    step = int(newest.read_text())
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=newest.with_name(str(step)))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    print("resumed at step", step, flush=True)

while step < STEPS:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank()))
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % EVERY == 0:
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=newest.with_name(str(step)))
        if dist.get_rank() == 0:
            newest.write_text(str(step))
        dist.barrier()

weights = b"".join(p.full_tensor().detach().numpy().tobytes() for p in model.parameters())
if dist.get_rank() == 0:
    print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
dist.destroy_process_group()
