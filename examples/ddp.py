"""A plain script for torchrun: it knows nothing of Trainmaster.

torchrun --nproc-per-node=2 examples/ddp.py
"""

import os

import torch
import torch.distributed as dist


def main() -> None:
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(dist.get_rank())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 1).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(200):
        x = torch.randn(32, 64, device=device)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            print(f"step {step} after {restarts} restarts: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
