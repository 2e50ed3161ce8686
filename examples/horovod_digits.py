"""Data-parallel training with Horovod, on scikit-learn's digits: each rank has a part of each batch."""

import argparse
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer")
options = parser.parse_args()
saved = options.folder / "model.pt"

hvd.init()
print("rank", hvd.rank(), "is process", os.getpid(), flush=True)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
optimizer = hvd.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
)
first = 0
if saved.exists():  # all ranks see the folder; if only rank 0 does, it loads and broadcasts
    state = torch.load(saved)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
    print("resumed at step", first, flush=True)

digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
for step in range(first + 1, options.steps + 1):
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(step))
    batch = order[: options.batch][hvd.rank() :: hvd.size()]
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
    loss.backward()
    optimizer.step()
    if step % 10 == 0 and hvd.rank() == 0:
        options.folder.mkdir(parents=True, exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, options.folder / "new.pt")
        (options.folder / "new.pt").replace(saved)
    time.sleep(options.pause)
if first < options.steps:
    print("final loss", loss.item().hex(), flush=True)
