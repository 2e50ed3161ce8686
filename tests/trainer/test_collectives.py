"""Collectives on CPU: what comes of them is the same by an all-to-all, for what is small, and by gloo's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.ranks import Ranks
from trainmaster.parallel import collectives

RANKS = 3
SCRIPT = """
import hashlib, json, os
import torch
import torch.distributed as dist
from trainmaster.parallel import collectives

dist.init_process_group("gloo")
group, rank, n = dist.group.WORLD, dist.get_rank(), dist.get_world_size()

def given(kind, rows):
    # What each rank has, known to all: integers, whose sums are exact in any order.
    generator = torch.Generator().manual_seed(rows)
    return torch.randint(-40, 40, (n, rows * n, 4), generator=generator).to(getattr(torch, kind))

found = {}
for kind in ("float32", "float64", "bfloat16", "int64"):
    for rows in json.loads(os.environ["ROWS"]):
        all_of, name = given(kind, rows), f"{kind} {rows}"
        own = all_of[rank].clone()
        total = own.clone()
        collectives.all_reduce_(total)
        highest = own.clone()
        collectives.all_reduce_(highest, group, highest=True)
        part = torch.empty_like(own[:rows])
        collectives.reduce_scatter_(part, own, group)
        whole = torch.empty_like(own)
        mine = whole.view(n, rows, 4)[rank].copy_(own[:rows])  # within it, as FSDP has it
        collectives.all_gather_(whole, mine, group)
        found[name] = {
            "sum": torch.equal(total, all_of.sum(0).to(total.dtype)),
            "maximum": torch.equal(highest, all_of.amax(0)),
            "part": torch.equal(part, all_of.sum(0).to(total.dtype)[rank * rows : (rank + 1) * rows]),
            "whole": torch.equal(whole, all_of[:, :rows].flatten(0, 1)),
            "given is left": torch.equal(own, all_of[rank]),
        }
    scalar = torch.tensor(rank + 1, dtype=getattr(torch, kind))
    collectives.all_reduce_(scalar)
    found[f"{kind} scalar"] = {"sum": scalar.item() == n * (n + 1) / 2}

# Not exact: whatever the order, all ranks go by the same one.
torch.manual_seed(rank)
total = torch.randn(1000)
collectives.all_reduce_(total)
broken = torch.tensor([1.0, float("nan") if rank == 1 else 2.0, float("inf") if rank == 2 else 0.0])
collectives.all_reduce_(broken)
found["bits"] = hashlib.sha256(total.numpy().tobytes()).hexdigest()
found["not finite"] = broken.isfinite().tolist()
with open(f"{os.environ['FOUND']}-{rank}", "w") as file:
    json.dump(found, file)
"""
SMALL, LARGE = 5, 150_000  # rows of 4 numbers per rank


@pytest.mark.processes
def test_small_and_large_ones_give_what_they_say_and_the_same_bits_on_each_rank(ranks: Ranks, tmp_path: Path) -> None:
    assert SMALL * RANKS * 4 * 8 * (RANKS - 1) < collectives._FEW < LARGE * 4 * 2 * (RANKS - 1)
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {"FOUND": str(tmp_path / "found"), "ROWS": json.dumps([SMALL, LARGE])}
    outcome = ranks.run(tmp_path, RANKS, environment, script=str(tmp_path / "script.py"))
    assert outcome.codes == [0] * RANKS, outcome.output
    found: list[dict[str, Any]] = [json.loads((tmp_path / f"found-{rank}").read_text()) for rank in range(RANKS)]
    for each in found:
        assert each.pop("not finite") == [True, False, False]
    assert len({each.pop("bits") for each in found}) == 1
    for each in found:
        assert len(each) == 12
        assert {name: row for name, row in each.items() if not all(row.values())} == {}
