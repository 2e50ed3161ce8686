"""Sums of gradients over replicas, in buckets, whatever a backward pass comes by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.ranks import Ranks
from trainmaster.parallel.gradient_buckets import parts

SCRIPT = """
import json, os
import torch
import torch.distributed as dist
from torch import nn
from trainmaster.parallel import gradient_buckets

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(2, 2, bias=False)
        self.sometimes = nn.Linear(2, 2, bias=False)  # by rank 1 alone
        self.never = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        y = self.used(x)
        return self.sometimes(y) if dist.get_rank() == 1 else y

def gradients():
    return {name: None if p.grad is None else p.grad.sum().item() for name, p in model.named_parameters()}

dist.init_process_group("gloo")
model = Net()
for parameter in model.parameters():
    nn.init.ones_(parameter)
replicas = gradient_buckets.Replicas(model, dist.group.WORLD, int(os.environ["BUCKET"]))
x = torch.ones(1, 2) * (dist.get_rank() + 1)
found = {}
model(x).sum().backward()
found["a pass"] = gradients()
model(x).sum().backward()
found["another, added"] = gradients()
model.zero_grad()
replicas.on = False
model(x).sum().backward()
replicas.on = True
model(x).sum().backward()
found["two micro-batches"] = gradients()
model.zero_grad()
replicas.on = False
model(x).sum().backward()
replicas.finish()
found["summed afterwards"] = gradients()
with open(f"{os.environ['FOUND']}-{dist.get_rank()}", "w") as file:
    json.dump(found, file)
"""


# By hand. Rank 0 has x = 1 and sums W x: each of the 4 entries of its gradient is 1. Rank 1 has x = 2 and sums V W x:
# entries of W's gradient are 2 x 2 = 4, of V's 4 (W x = 4).
ONCE = {"used.weight": 4 * (1 + 4), "sometimes.weight": 4 * 4, "never.weight": None}
TWICE = {"used.weight": 40, "sometimes.weight": 32, "never.weight": None}


@pytest.mark.processes
@pytest.mark.parametrize("bucket", [1, 20, 1 << 20], ids=["a bucket each", "two", "one for all"])
def test_gradients_are_sums_over_ranks_and_passes(ranks: Ranks, tmp_path: Path, bucket: int) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {"FOUND": str(tmp_path / "found"), "BUCKET": str(bucket)}
    outcome = ranks.run(tmp_path, 2, environment, script=str(tmp_path / "script.py"))
    assert outcome.codes == [0, 0], outcome.output
    for rank in range(2):
        found: dict[str, Any] = json.loads((tmp_path / f"found-{rank}").read_text())
        assert found == {
            "a pass": ONCE,
            "another, added": TWICE,
            "two micro-batches": TWICE,
            "summed afterwards": ONCE,
        }


def test_a_bucket_holds_what_is_alike_and_fits() -> None:
    large = nn.Parameter(torch.empty(100 // 4 + 1, device="meta"))
    half = nn.Parameter(torch.empty(100 // 8, device="meta"))
    other = nn.Parameter(torch.empty(1, device="meta", dtype=torch.float64))
    found = parts([half, half, half, large, half, other], bucket=100)
    assert [len(part) for part in found] == [2, 1, 1, 1, 1]
