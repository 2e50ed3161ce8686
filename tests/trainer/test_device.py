"""Which device a rank computes on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faked_cuda import FakedCuda
from tests.trainer.ranks import Ranks
from trainmaster.contract.config import Device
from trainmaster.errors import ConfigError
from trainmaster.train.device import choose


@pytest.mark.parametrize("asked", ["Auto", "CUDA"])
@pytest.mark.parametrize(("ranks", "cuda"), [(1, 1), (2, 2), (8, 8), (2, 8)])
def test_each_rank_of_a_node_has_the_device_of_its_local_rank(asked: Device, ranks: int, cuda: int) -> None:
    chosen = [choose(asked, local_rank, ranks, cuda=cuda, mps=False) for local_rank in range(ranks)]
    assert [str(choice.device) for choice in chosen] == [f"cuda:{local_rank}" for local_rank in range(ranks)]
    assert not any(choice.words for choice in chosen)


def test_with_fewer_devices_than_ranks_all_compute_on_the_cpu_and_say_why() -> None:
    chosen = [choose("Auto", local_rank, 4, cuda=1, mps=False) for local_rank in range(4)]
    assert {str(choice.device) for choice in chosen} == {"cpu"}
    words = "this node has 1 CUDA device for 4 ranks, so all ranks compute on the CPU (training.device: Auto)"
    assert {choice.words for choice in chosen} == {words}


@pytest.mark.parametrize(("asked", "cuda"), [("Auto", 0), ("CPU", 8)])
def test_the_cpu_that_nobody_would_miss_a_device_on_needs_no_words(asked: Device, cuda: int) -> None:
    choice = choose(asked, 0, 1, cuda=cuda, mps=False)
    assert (str(choice.device), choice.words) == ("cpu", "")


@pytest.mark.parametrize(
    ("asked", "cuda", "mps", "words"),
    [
        ("CUDA", 0, False, "CUDA needs a device for each rank, and this node has 0 CUDA devices for 2 ranks"),
        ("CUDA", 1, False, "CUDA needs a device for each rank, and this node has 1 CUDA device for 2 ranks"),
        ("MPS", 2, False, "MPS cannot be used, because this machine has no such device; use CPU"),
        ("MPS", 0, True, "MPS cannot be used, because losses are summed in float64, which MPS does not have; use CPU"),
    ],
)
def test_a_device_that_is_not_there_is_refused(asked: Device, cuda: int, mps: bool, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^training.device: {words}"):
        choose(asked, 0, 2, cuda=cuda, mps=mps)


@pytest.mark.processes
@pytest.mark.parametrize(("devices", "world_size"), [(1, 2), (2, 2), (8, 3)])
def test_no_two_ranks_get_one_device(
    ranks: Ranks, faked_cuda: FakedCuda, tmp_path: Path, devices: int, world_size: int
) -> None:
    probe = str(Path(__file__).with_name("device_probe.py"))
    variables = {**faked_cuda(devices), "LOCAL_WORLD_SIZE": str(world_size)}
    outcome = ranks.run(tmp_path, world_size, variables, script=probe)
    assert outcome.codes == [0] * world_size, outcome.output
    chosen = re.findall(r"this rank computes on (GPU-faked-\d|the CPU)", outcome.output)
    if devices >= world_size:
        assert sorted(chosen) == [f"GPU-faked-{number}" for number in range(world_size)]
        assert outcome.output.count(f"of {world_size}: no words") == world_size
    else:
        assert chosen == ["the CPU"] * world_size
        assert "rank 0 of 2: this node has 1 CUDA device for 2 ranks, so all ranks compute on the CPU" in outcome.output
