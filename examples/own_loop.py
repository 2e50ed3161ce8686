"""A training loop of one's own under Trainmaster: plain PyTorch, and four lines with `tm`.

    python examples/own_loop.py                                       as it is
    torchrun --nproc-per-node=2 examples/own_loop.py --folder runs/x  saves and resumes
    trainmaster run manifests/examples/own-loop.yaml                  recovers, too

The model tells apart the arms of a spiral.
"""

from __future__ import annotations

import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import trainmaster as tm

ARMS = 3


class Spiral:
    """Endless batches of points; anything with `state_dict` can say where it stands."""

    def __init__(self, batch: int, seed: int) -> None:
        self.batch = batch
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Points [batch, 2] and the arm [batch] that each lies on."""
        radius = 0.2 + 0.8 * torch.rand(self.batch, generator=self.generator)
        arm = torch.randint(ARMS, (self.batch,), generator=self.generator)
        angle = 2 * math.pi * (arm / ARMS + radius)
        points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
        return points + 0.02 * torch.randn(points.shape, generator=self.generator), arm

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.generator.set_state(state["generator"])


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=600)
    arguments.add_argument("--folder", help="where to save; a job has its own")
    given = arguments.parse_args()

    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.05), nn.Linear(64, ARMS)
    )
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
    data = Spiral(batch=64, seed=rank)

    run = tm.init(checkpoint_dir=given.folder)
    state = tm.State(model=model, optimizer=optimizer, scheduler=scheduler, data=data)
    for step in run.steps(state, total=given.steps, save_every=50):
        points, arms = data.draw()
        logits = model(points)
        loss = F.cross_entropy(logits, arms)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.report(loss=loss, accuracy=(logits.argmax(1) == arms).float().mean())
        if rank == 0 and step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
