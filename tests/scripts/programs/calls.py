"""Ranks that call each other by torch's RPC instead of joining in collectives: rank 0 trains with gradients of the
others, and saves. The others only answer, and end when rank 0 does."""

import hashlib
import os
from pathlib import Path

import torch
import torch.distributed.rpc as rpc
import uncompiled  # noqa: F401  spares the import of its compiler

STEPS, EVERY = 12, 4


def gradient(weights: torch.Tensor, number: int) -> torch.Tensor:
    weights = weights.clone().requires_grad_()
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
    (x @ weights - x.sum(1)).square().mean().backward()
    return weights.grad


def train(others: list[str], path: Path) -> None:
    weights = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.Adam([weights], lr=1e-2)
    step = 0
    if path.exists():
        saved = torch.load(path)
        step = saved["step"]
        weights.data.copy_(saved["weights"])
        optimizer.load_state_dict(saved["optimizer"])
        print("resumed at step", step, flush=True)
    while step < STEPS:
        asked = [rpc.rpc_async(name, gradient, (weights.detach(), step * 10 + n)) for n, name in enumerate(others)]
        optimizer.zero_grad()
        weights.grad = torch.stack([answer.wait() for answer in asked]).mean(0)
        optimizer.step()
        step += 1
        if step % EVERY == 0:
            torch.save({"step": step, "weights": weights.data, "optimizer": optimizer.state_dict()}, f"{path}.new")
            os.replace(f"{path}.new", path)
    print("weights", hashlib.sha256(weights.detach().numpy().tobytes()).hexdigest(), flush=True)


def main() -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        train([f"rank{other}" for other in range(1, world_size)], Path("calls.pt"))
    rpc.shutdown()


if __name__ == "__main__":
    main()
