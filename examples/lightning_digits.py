"""Lightning, data parallel, on scikit-learn's digits. `ckpt_path="last"` lets it resume by itself.

Lightning does not restore the place in the data within an epoch. So the images of a step follow from its number.
"""

import argparse
import itertools
import os
import time
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=64, help="images of a step, of all ranks together")
parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer")
options = parser.parse_args()
digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
# Lightning asks for the size of the world, which the launcher's variables tell.
nodes, ranks_of_a_node = int(os.environ.get("GROUP_WORLD_SIZE", "1")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        self.loss = None

    def training_step(self, batch, index):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(self.global_step))
        chosen = order[: options.batch][self.global_rank :: self.trainer.world_size]
        logits = self.layers(images[chosen].to(self.device))
        self.loss = torch.nn.functional.cross_entropy(logits, labels[chosen].to(self.device))
        return self.loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Pause(Callback):
    def on_train_batch_end(self, *arguments, **given):
        time.sleep(options.pause)

    def on_train_start(self, trainer, model):
        if trainer.global_step:
            print("resumed at step", trainer.global_step, flush=True)


lightning.seed_everything(0)
trainer = lightning.Trainer(
    accelerator="auto",
    devices=ranks_of_a_node,
    num_nodes=nodes,
    strategy="ddp",
    max_steps=options.steps,
    callbacks=[ModelCheckpoint(options.folder, every_n_train_steps=10, save_last=True), Pause()],
    logger=False,
    enable_progress_bar=False,
)
print("rank", trainer.global_rank, "is process", os.getpid(), flush=True)
model = Classifier()
trainer.fit(model, itertools.repeat(0), ckpt_path="last")
if torch.distributed.is_initialized():  # a process that ends while its peers are gone already may abort otherwise
    torch.distributed.destroy_process_group()
if model.loss is not None:
    print("final loss", model.loss.item().hex(), flush=True)
