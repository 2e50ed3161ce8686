"""A convolutional net on images of digits with options, a test after each epoch, and one save at the end: it does not
resume, and each rank trains for itself."""

import argparse
import hashlib

import torch
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR

BATCHES = 4  # of an epoch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dropout, self.out = nn.Conv2d(1, 4, 3), nn.Dropout(0.25), nn.Linear(144, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.dropout(torch.flatten(torch.relu(self.conv(x)), 1)))


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(number))
    return images, (images.mean((1, 2, 3)) * 100).long() % 10


def test(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        images, digits = batch(-1)
        print("accuracy", (model(images).argmax(1) == digits).float().mean().item(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--save-model", action="store_true")
    args, _ = parser.parse_known_args()
    torch.manual_seed(1)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(args.epochs):
        model.train()
        for number in range(BATCHES):
            images, digits = batch(epoch * BATCHES + number)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), digits).backward()
            optimizer.step()
        test(model)
        scheduler.step()
    if args.save_model:
        torch.save(model.state_dict(), "digits.pt")
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print("weights", hashlib.sha256(weights).hexdigest(), flush=True)


if __name__ == "__main__":
    main()
