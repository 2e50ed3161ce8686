"""A loop over accelerate: its sampler, its accumulation, its own checkpoints with the state of the loader."""

import argparse
import hashlib
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 4  # of 3 steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("states"))
    args, _ = parser.parse_known_args()
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    set_seed(3)
    x = torch.randn(24, 6)
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * 6)
    model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
    first, newest = 0, args.folder / "newest"
    if newest.exists():
        first = int(newest.read_text())
        accelerator.load_state(str(args.folder / f"epoch-{first}"))
        accelerator.print("resumed at step", 3 * first, flush=True)
    for epoch in range(first, EPOCHS):
        model.train()
        data.set_epoch(epoch)
        for source, targets in data:
            with accelerator.accumulate(model):
                accelerator.backward(torch.nn.functional.mse_loss(model(source), targets))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        accelerator.save_state(str(args.folder / f"epoch-{epoch + 1}"))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            newest.write_text(str(epoch + 1))
    weights = b"".join(p.detach().numpy().tobytes() for p in accelerator.unwrap_model(model).parameters())
    accelerator.print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
