"""A trainer class as libraries have it: two folders `checkpoint-N` are kept, gradients are accumulated, the rate and
the random numbers have states, and the newest checkpoint is looked for at the start."""

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import uncompiled  # noqa: F401  spares the import of its compiler
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR


@dataclass
class Arguments:
    output_dir: Path = Path("output")
    max_steps: int = 12
    save_steps: int = 4
    save_total_limit: int = 2
    gradient_accumulation_steps: int = 2


def newest_checkpoint(folder: Path) -> Path | None:
    found = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return max(found, key=lambda path: int(path.name.partition("-")[2]), default=None)


class Trainer:
    def __init__(self, model: torch.nn.Module, args: Arguments) -> None:
        self.args, self.step = args, 0
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.schedule = LambdaLR(self.optimizer, lambda step: 1 - step / args.max_steps)
        self.is_main = dist.get_rank() == 0

    def train(self, resume_from: Path | None) -> None:
        if resume_from is not None:
            self._load(resume_from)
        while self.step < self.args.max_steps:
            for part in range(self.args.gradient_accumulation_steps):
                self._loss(part).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            self.step += 1
            if self.step % self.args.save_steps == 0:
                self._save()

    def _loss(self, part: int) -> torch.Tensor:
        number = (self.step * self.args.gradient_accumulation_steps + part) * dist.get_world_size() + dist.get_rank()
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(number)) + 0.01 * torch.rand(1)
        return (self.model(x) - x).square().mean() / self.args.gradient_accumulation_steps

    def _save(self) -> None:
        states = [None] * dist.get_world_size()
        dist.all_gather_object(states, torch.get_rng_state())
        if self.is_main:
            path = self.args.output_dir / f"checkpoint-{self.step}"
            unfinished = path.with_name(f"tmp-{path.name}")
            unfinished.mkdir(parents=True, exist_ok=True)
            torch.save(self.model.module.state_dict(), unfinished / "model.bin")
            torch.save([self.optimizer.state_dict(), self.schedule.state_dict()], unfinished / "optimizer.pt")
            torch.save(states, unfinished / "rng_states.pt")
            (unfinished / "trainer_state.json").write_text(json.dumps({"global_step": self.step}))
            if path.exists():
                shutil.rmtree(path)
            unfinished.rename(path)
            kept = sorted(self.args.output_dir.glob("checkpoint-*"), key=os.path.getmtime)
            for old in kept[: -self.args.save_total_limit]:
                shutil.rmtree(old)
        dist.barrier()

    def _load(self, path: Path) -> None:
        self.step = json.loads((path / "trainer_state.json").read_text())["global_step"]
        self.model.module.load_state_dict(torch.load(path / "model.bin"))
        optimizer, schedule = torch.load(path / "optimizer.pt")
        self.optimizer.load_state_dict(optimizer)
        self.schedule.load_state_dict(schedule)
        torch.set_rng_state(torch.load(path / "rng_states.pt")[dist.get_rank()])
        print("resumed at step", self.step, flush=True)


def main() -> None:
    args = Arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(42)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
    trainer = Trainer(model, args)
    trainer.train(newest_checkpoint(args.output_dir))
    if trainer.is_main:
        weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
