"""A rank dies inside the last all-reduce of a step: some got its sums, some an error, and nobody loses the step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.job import Undisturbed
from tests.trainer.ranks import Ranks
from tests.trainer.test_ram import RamJob

pytestmark = pytest.mark.processes

MESHES = {"replicate": (3, {"dpReplicate": 3}), "hsdp": (4, {"dpReplicate": 2, "dpShard": 2})}
DEAD = 1
STEP = 5

SCRIPT = """
import os, signal
import torch.distributed as dist
from trainmaster.train import loop

whole, steps = loop.all_reduce_, []

def all_reduce_(tensor, *args, **kwargs):
    steps.append(tensor)
    if len(steps) != {step} or dist.get_rank() == {passes}:
        return whole(tensor, *args, **kwargs)
    whole(tensor.clone(), *args, **kwargs)
    if dist.get_rank() == {dead}:
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("Connection closed by peer [127.0.0.1]:1")

loop.all_reduce_ = all_reduce_
loop.main()
"""


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("passes", [0, 2])
@pytest.mark.parametrize("every", ["0", "1"])
def test_those_behind_complete_the_step_with_the_sums_of_who_is_through(
    ranks: Ranks, undisturbed: Undisturbed, tmp_path: Path, text: Path, mesh: str, passes: int, every: str
) -> None:
    size, parallelism = MESHES[mesh]
    whole = undisturbed(size, parallelism=parallelism, batch={"global": 12})
    job = RamJob(ranks, tmp_path / "broken", text, every=every, parallelism=parallelism, batch={"global": 12})
    script = tmp_path / "broken.py"
    script.write_text(SCRIPT.format(step=STEP, passes=passes, dead=DEAD))
    first = job.round(1, size, env={**job.ram, "LOCAL_WORLD_SIZE": "1"}, agent=True, asks=True, script=str(script))
    assert [m["step"] for m in first.said("rescued")] == [STEP] * (size - 1), first.output
    second = job.sound(2, size)
    assert [m["step"] for m in second.said("resumed")] == [STEP] * size
    assert job.final == {**whole.final, "round": 2}
    assert job.losses == whole.losses
    assert [line["step"] for line in job.metrics] == list(range(1, 10)), "whoever completes a step writes it down"


def test_a_step_that_nobody_is_through_is_not_waited_for(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    job = RamJob(ranks, tmp_path, text, every="0", parallelism={"dpReplicate": 3}, batch={"global": 12})
    script = tmp_path / "broken.py"
    script.write_text(SCRIPT.format(step=STEP, passes=-1, dead=DEAD))
    env = {**job.ram, "LOCAL_WORLD_SIZE": "3"}
    first = job.round(1, 3, env=env, agent=True, script=str(script))
    assert [m["step"] for m in first.said("rescued")] == [STEP - 1] * 2, first.output
    assert [m["step"] for m in job.sound(2, 3).said("resumed")] == [STEP - 1] * 3
