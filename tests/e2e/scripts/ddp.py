"""An unmodified torchrun-style script: DDP, its own checkpoint file, and a way to die. Knows nothing of Trainmaster."""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist


def die(how: str) -> None:
    if how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how in ("exit", "leave"):
        os._exit(3 if how == "exit" else 0)
    else:
        raise ArithmeticError("the answer is not 42")


parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint", type=Path, required=True)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--die", choices=["segv", "kill", "exit", "leave", "raise"])
parser.add_argument("--die-at", type=int, default=7)
parser.add_argument("--die-rank", type=int, default=1)
parser.add_argument("--ends-well-on-sigterm", action="store_true")
parser.add_argument("--by-hand", action="store_true", help="neither DDP nor an optimizer, which import for seconds")
parser.add_argument("--uncompiled", action="store_true", help="without torch's compiler, which DDP would import")
args = parser.parse_args()

if args.uncompiled:
    import uncompiled  # noqa: F401

if args.ends_well_on_sigterm:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
step = 0
while args.by_hand:
    dist.all_reduce(torch.ones(8))
    step += 1
    if step == args.die_at and rank == args.die_rank:
        die(args.die)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
if args.checkpoint.exists():
    saved = torch.load(args.checkpoint, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
    print(f"resumed at step {step}", flush=True)

while step < args.steps:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step * dist.get_world_size() + rank))
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 5 == 0 and rank == 0:
        partial = args.checkpoint.with_suffix(".tmp")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, partial)
        partial.rename(args.checkpoint)
    if args.die and step == args.die_at and rank == args.die_rank and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        die(args.die)

dist.barrier()
if rank == 0:
    print(f"finished at step {step} after {os.environ['TORCHELASTIC_RESTART_COUNT']} restarts", flush=True)
dist.destroy_process_group()
