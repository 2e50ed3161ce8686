"""ZeRO with DeepSpeed, on scikit-learn's digits. `deepspeed` gives the script its local rank as first argument."""

import argparse
import os
import time
from pathlib import Path

import deepspeed
import torch
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=int(os.environ["LOCAL_RANK"]))
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--stage", type=int, default=2, help="of ZeRO")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer")
options = parser.parse_args()

deepspeed.init_distributed()
rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
print("rank", rank, "is process", os.getpid(), flush=True)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
config = {
    "train_batch_size": options.batch,
    "zero_optimization": {"stage": options.stage},
    # Without torch_adam DeepSpeed compiles an Adam of its own at the first start, which takes a compiler and a minute.
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
if (options.folder / "latest").exists():
    engine.load_checkpoint(str(options.folder))
    print("resumed at step", engine.global_steps, flush=True)

digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
first = engine.global_steps
for step in range(first + 1, options.steps + 1):
    batch = torch.randperm(len(images), generator=torch.Generator().manual_seed(step))[: options.batch][rank::ranks]
    x, y = images[batch].to(engine.device), labels[batch].to(engine.device)
    loss = torch.nn.functional.cross_entropy(engine(x), y)
    engine.backward(loss)
    engine.step()
    if step % 10 == 0:
        engine.save_checkpoint(str(options.folder), tag=f"step-{step}")
    time.sleep(options.pause)
if first < options.steps:
    print("final loss", float(loss).hex(), flush=True)
