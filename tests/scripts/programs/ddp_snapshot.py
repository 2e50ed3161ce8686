"""DDP with a snapshot, in the shape of torch's tutorial: a trainer that counts epochs and resumes by itself."""

import hashlib
import os

import torch
import uncompiled  # noqa: F401  spares the import of its compiler
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS, SAVE_EVERY = 4, 1  # of 3 steps


class Trainer:
    def __init__(self, model: torch.nn.Module, data: DataLoader, optimizer: torch.optim.Optimizer, path: str) -> None:
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.data, self.optimizer, self.path = data, optimizer, path
        self.epochs_run = 0
        if os.path.exists(path):
            snapshot = torch.load(path)
            model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
            print("resumed at step", 3 * self.epochs_run, flush=True)
        self.model = DistributedDataParallel(model)

    def train(self) -> None:
        for epoch in range(self.epochs_run, EPOCHS):
            self.data.sampler.set_epoch(epoch)
            for source, targets in self.data:
                self.optimizer.zero_grad()
                torch.nn.functional.mse_loss(self.model(source), targets).backward()
                self.optimizer.step()
            if self.local_rank == 0 and epoch % SAVE_EVERY == 0:
                snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}
                torch.save(snapshot, self.path + ".new")
                os.replace(self.path + ".new", self.path)


def main() -> None:
    init_process_group("gloo")
    torch.manual_seed(0)
    source = torch.rand(24, 20)
    data = TensorDataset(source, source.sum(1, keepdim=True))
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    trainer = Trainer(model, DataLoader(data, 4, sampler=DistributedSampler(data)), optimizer, "snapshot.pt")
    trainer.train()
    if trainer.local_rank == 0:
        weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
    destroy_process_group()


if __name__ == "__main__":
    main()
