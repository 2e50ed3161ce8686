"""A loop of one's own that may forget to have one of its states kept: for tests of `trainmaster prove`."""

import argparse
import os

import torch
import torch.distributed as dist
import uncompiled  # noqa: F401  spares the import of its compiler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainmaster as tm

STEPS = 14


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--forget", choices=["nothing", "scheduler", "generator", "loader", "seed"], required=True)
    forget = arguments.parse_args().forget

    if forget != "seed":
        torch.manual_seed(7)
    if os.environ["WORLD_SIZE"] != "1":
        dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    model: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    noise = torch.Generator().manual_seed(rank)
    objects = {"model": model, "optimizer": optimizer}
    if forget != "scheduler":
        objects["scheduler"] = scheduler
    if forget != "generator":
        objects["noise"] = Kept(noise)
    batches = iter(DataLoader(TensorDataset(torch.arange(99 * 8.0).view(99, 8) / 800), batch_size=2))

    run = tm.init()
    for _ in run.steps(tm.State(**objects), total=STEPS, save_every=4):
        inputs = next(batches)[0] if forget == "loader" else torch.rand(4, 8, generator=noise)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.report(loss=loss)


class Kept:
    """A generator as something that has a state."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"state": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.generator.set_state(state["state"])


if __name__ == "__main__":
    main()
