"""Hugging Face's Trainer, data parallel, on scikit-learn's digits. In a job with `framework: HuggingFace` it continues
after a failure from its newest checkpoint."""

import argparse
import os
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainerCallback, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=64, help="images of a step, of all ranks together")
parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer")
options = parser.parse_args()


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        self.loss = None

    def forward(self, pixels, labels):
        logits = self.layers(pixels)
        self.loss = torch.nn.functional.cross_entropy(logits, labels)
        return {"loss": self.loss, "logits": logits}


class Pause(TrainerCallback):
    def on_train_begin(self, arguments, state, control, **given):
        if state.global_step:
            print("resumed at step", state.global_step, flush=True)

    def on_step_end(self, *arguments, **given):
        time.sleep(options.pause)


torch.manual_seed(0)
arguments = TrainingArguments(
    output_dir=str(options.folder),
    max_steps=options.steps,
    per_device_train_batch_size=options.batch // int(os.environ.get("WORLD_SIZE", "1")),
    learning_rate=0.01,
    save_steps=10,
    save_total_limit=3,
    report_to=[],
    disable_tqdm=True,
    use_cpu=not torch.cuda.is_available(),
)
print("rank", arguments.process_index, "is process", os.getpid(), flush=True)
digits = load_digits()
images = [
    {"pixels": torch.tensor(image, dtype=torch.float32) / 16, "labels": int(label)}
    for image, label in zip(digits.data, digits.target, strict=True)
]
model = Classifier()
Trainer(model=model, args=arguments, train_dataset=images, callbacks=[Pause()]).train()
if model.loss is not None:
    print("final loss", model.loss.item().hex(), flush=True)
