"""A plain script of Lightning on the device of its rank. It resumes from its newest checkpoint, and knows nothing of
Trainmaster.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

PACE_S = 0.025


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 2**15

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(64, generator=torch.Generator().manual_seed(index))


class Rolled(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 64))

    def training_step(self, x: torch.Tensor, index: int) -> torch.Tensor:
        time.sleep(PACE_S)
        loss: torch.Tensor = (self.net(x) - x.roll(1, dims=1)).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True)
    given = parser.parse_args()

    lightning.seed_everything(0)
    saves = ModelCheckpoint(given.folder, save_last=True, every_n_train_steps=given.every, save_top_k=0)
    options: dict[str, Any] = {"enable_progress_bar": False, "logger": False, "callbacks": [saves]}
    trainer = lightning.Trainer(accelerator="auto", devices=1, max_steps=given.steps, **options)
    last = given.folder / "last.ckpt"
    resumed = last if last.exists() else None
    print(f"on {trainer.strategy.root_device}, resumes from {resumed}", flush=True)
    data = torch.utils.data.DataLoader(Rows(), batch_size=32)
    trainer.fit(Rolled(), data, ckpt_path=resumed)


if __name__ == "__main__":
    main()
