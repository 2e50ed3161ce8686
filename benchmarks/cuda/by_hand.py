"""A Llama and its loop as a person who knows torch would write them: plain modules, SDPA, autocast, fused AdamW,
torch.compile of the model with its loss. No code of the trainer's models or of its loop is in it.

Its parameters have the names of the trainer's, so that both begin with the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.trainer_systems.job import Job
from benchmarks.turns import Meter

IGNORED = -100


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.query = nn.Linear(width, heads * self.size, bias=False)
        self.key = nn.Linear(width, kv_heads * self.size, bias=False)
        self.value = nn.Linear(width, kv_heads * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, time, _ = x.shape
        q = turned(self.query(x).view(batch, time, -1, self.size).transpose(1, 2), cosine, sine)
        k = turned(self.key(x).view(batch, time, -1, self.size).transpose(1, 2), cosine, sine)
        v = self.value(x).view(batch, time, -1, self.size).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return self.out(y.transpose(1, 2).reshape(batch, time, -1))


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions of x [B, H, T, K]; cosine and sine are [T, K / 2]."""
    low, high = x.chunk(2, dim=-1)
    cosine, sine = cosine.to(x.dtype), sine.to(x.dtype)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1)


class Mlp(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=eps)
        self.attention = Attention(width, heads, kv_heads)
        self.mlp_norm = nn.RMSNorm(width, eps=eps)
        self.mlp = Mlp(width, hidden)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):  # type: ignore[misc]
    def __init__(self, options: dict[str, Any], eps: float = 1e-5, base: float = 10_000.0) -> None:
        super().__init__()
        width, heads = options["width"], options["heads"]
        self.embedding = nn.Embedding(options["vocabulary"], width)
        self.blocks = nn.ModuleList(
            Layer(width, heads, options["kv_heads"], options["hidden"], eps) for _ in range(options["layers"])
        )
        self.norm = nn.RMSNorm(width, eps=eps)
        self.head = nn.Linear(width, options["vocabulary"], bias=False)
        frequency = base ** (-torch.arange(0, width // heads, 2, dtype=torch.float32) / (width // heads))
        angle = torch.outer(torch.arange(options["context"], dtype=torch.float32), frequency)
        self.register_buffer("cosine", angle.cos(), persistent=False)
        self.register_buffer("sine", angle.sin(), persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The sum of the losses of tokens [B, T] with targets [B, T]."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def train(job: Job, meter: Meter, begin: Callable[[], None], device: torch.device, compiled: bool) -> None:
    """Train the job's model on its samples, in bf16, to the end. `begin`: waits until this side may use the device."""
    model = Llama(job.config.model.options)
    model.load_state_dict(job.model().state_dict())
    begin()
    model.to(device)
    optimizer = job.optimizer(model.parameters())
    compute = torch.compile(model) if compiled else model
    for step, tokens, targets in job.batches():
        valid = int((targets != IGNORED).sum())
        total = torch.zeros((), device=device)
        for part, wanted in zip(tokens.chunk(job.micro_batches), targets.chunk(job.micro_batches), strict=True):
            part, wanted = moved(part, device), moved(wanted, device)
            with torch.autocast(device.type, torch.bfloat16):
                loss = compute(part, wanted) / valid
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        optimizer.step()
        optimizer.zero_grad()
        meter.step(step, total.item)


def moved(values: Tensor, device: torch.device) -> Tensor:
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values
