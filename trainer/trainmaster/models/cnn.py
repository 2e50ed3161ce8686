"""A small convolutional network with residual blocks (He et al., arXiv 1512.03385), over images [B, C, H, W].

It normalizes groups (Wu and He, arXiv 1803.08494) instead of batches, so that a sample's loss does not depend on the
other samples in the micro-batch.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from trainmaster.models.model_options import CNNOptions
from trainmaster.parallel.model_plan import Plan


class ResidualBlock(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, width)
        self.convolution = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.convolution(F.relu(self.norm(x)))


class CNN(nn.Module):  # type: ignore[misc]
    plan = Plan(blocks="blocks")

    def __init__(self, options: CNNOptions) -> None:
        super().__init__()
        width = options.width
        self.stem = nn.Conv2d(options.channels, width, 3, padding=1)
        self.blocks = nn.ModuleList(ResidualBlock(width, options.groups) for _ in range(options.layers))
        self.norm = nn.GroupNorm(options.groups, width)
        self.head = nn.Linear(width, options.classes)
        self._fan_in = {"stem.weight": 9 * options.channels, "head.weight": width}
        self._block = math.sqrt(2 / (9 * width)) / math.sqrt(options.layers)

    def initial_std(self, name: str) -> float | None:
        """Return the standard deviation of a parameter's initial values, or None if they are ones."""
        if name.endswith(".bias"):
            return 0.0
        if "norm" in name:
            return None
        return 1 / math.sqrt(self._fan_in[name]) if name in self._fan_in else self._block

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [B, V] of V classes for images [B, C, H, W]."""
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(F.relu(self.norm(x)).mean((2, 3)))
