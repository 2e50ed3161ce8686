"""What a model draws at random in forward passes: keyed in a job, and different from rank to rank in a user's loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.process_groups import process_group
from trainmaster.parallel.forward_rng import ForwardRng, seed_copies
from trainmaster.parallel.mesh import Mesh

ONES = torch.ones(64)
Draw = Callable[[ForwardRng, nn.Module], list[Tensor]]


def drawn(degrees: dict[str, int], draw: Draw) -> list[list[Tensor]]:
    """What `draw` returns on each rank of a mesh for a model that is one dropout. The generators of all ranks begin
    with the same state."""
    size, found = math.prod(degrees.values()), []
    for rank in range(size):
        with process_group(rank, size):
            torch.manual_seed(0)
            dropout = nn.Dropout(0.5)
            found.append(draw(ForwardRng({0: dropout}, Mesh(degrees, "cpu"), "cpu"), dropout))
    return found


def step(number: int, slots: range, seed: int = 7) -> Draw:
    """The masks of a step's micro-batches in a job, whatever was drawn before."""

    def draw(rng: ForwardRng, dropout: nn.Module) -> list[Tensor]:
        torch.rand(number)
        rng.begin(seed, number, slots)
        return [dropout(ONES) for _ in slots]

    return draw


def in_a_users_loop(rng: ForwardRng, dropout: nn.Module) -> list[Tensor]:
    rng.follow()
    return [dropout(ONES) for _ in range(2)]


def test_a_mask_follows_from_seed_step_and_place_in_the_batch_alone() -> None:
    ((first, second),) = drawn({"dpShard": 1}, step(3, range(0, 4, 2)))
    ((again, _),) = drawn({"dpShard": 1}, step(3, range(0, 4, 2)))
    ((in_another_world,),) = drawn({"dpShard": 1}, step(3, range(2, 4, 2)))
    ((later, _),) = drawn({"dpShard": 1}, step(4, range(0, 4, 2)))
    ((of_another_seed, _),) = drawn({"dpShard": 1}, step(3, range(0, 4, 2), seed=8))
    assert torch.equal(first, again)
    assert torch.equal(second, in_another_world)
    others = [second, later, of_another_seed]
    assert not any(torch.equal(first, other) for other in others)


def test_each_step_of_a_job_begins_its_count_of_micro_batches_again() -> None:
    def draw(rng: ForwardRng, dropout: nn.Module) -> list[Tensor]:
        return [mask for _ in range(2) for mask in step(5, range(0, 6, 2))(rng, dropout)]

    (masks,) = drawn({"dpShard": 1}, draw)
    assert all(torch.equal(one, other) for one, other in zip(masks[:3], masks[3:], strict=True))


def test_an_evaluation_draws_nothing_and_counts_for_nothing() -> None:
    def draw(rng: ForwardRng, dropout: nn.Module) -> list[Tensor]:
        rng.begin(7, 3, range(1))
        with torch.no_grad():
            dropout(ONES)
        return [dropout(ONES)]

    assert torch.equal(drawn({"dpShard": 1}, draw)[0][0], drawn({"dpShard": 1}, step(3, range(1)))[0][0])


@pytest.mark.parametrize("draw", [step(3, range(1)), in_a_users_loop], ids=["job", "loop"])
def test_ranks_of_a_tensor_group_have_the_same_masks(draw: Draw) -> None:
    (one,), (other,) = ([masks[0]] for masks in drawn({"tp": 2}, draw))
    assert torch.equal(one, other)


@pytest.mark.parametrize("draw", [step(3, range(1)), in_a_users_loop], ids=["job", "loop"])
def test_parts_of_a_sequence_have_different_masks(draw: Draw) -> None:
    (one,), (other,) = ([masks[0]] for masks in drawn({"cp": 2}, draw))
    assert not torch.equal(one, other)


def test_in_a_users_loop_ranks_with_other_data_have_other_masks_and_tensor_groups_have_one() -> None:
    a, b, c, d = drawn({"dpShard": 2, "tp": 2}, in_a_users_loop)
    for index in range(2):
        assert torch.equal(a[index], b[index])
        assert torch.equal(c[index], d[index])
        assert not torch.equal(a[index], c[index])
    assert not torch.equal(a[0], a[1])


def test_a_users_own_numbers_stay_the_same_on_all_ranks_and_masks_come_back_with_their_state() -> None:
    def draw(rng: ForwardRng, dropout: nn.Module) -> list[Tensor]:
        rng.follow()
        dropout(ONES)
        saved = torch.get_rng_state()
        after, later = torch.rand(4), dropout(ONES)
        torch.set_rng_state(saved)
        torch.rand(4)
        return [after, later, dropout(ONES)]

    (one, later, resumed), (other, _, _) = drawn({"dpReplicate": 2}, draw)
    assert torch.equal(one, other)
    assert torch.equal(later, resumed)


def test_the_stages_of_a_pipeline_that_are_on_one_rank_have_different_masks() -> None:
    stages = {0: nn.Dropout(0.5), 3: nn.Dropout(0.5)}

    def draw(rng: ForwardRng, _: nn.Module) -> list[Tensor]:
        rng = ForwardRng(stages, rng._mesh, "cpu")
        rng.begin(7, 3, range(2))
        return [stage(ONES) for _ in range(2) for stage in stages.values()]

    (masks,) = drawn({"dpShard": 1}, draw)
    assert len({tuple(mask.tolist()) for mask in masks}) == 4


def test_a_pass_that_fails_leaves_the_generator_as_it_was() -> None:
    def draw(rng: ForwardRng, dropout: nn.Module) -> list[Tensor]:
        rng.follow()
        dropout(ONES)
        expected = torch.rand(4)
        torch.manual_seed(0)
        with pytest.raises(TypeError):
            dropout("no tensor")
        return [expected, torch.rand(4)]

    for expected, found in drawn({"dpReplicate": 2}, draw):
        assert torch.equal(expected, found)


def test_copies_on_several_gpus_draw_different_numbers_and_the_same_ones_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "manual_seed", seeds.append)
    devices = [torch.device("cuda", index) for index in range(3)]
    torch.manual_seed(0)
    for _ in range(2):
        seed_copies(devices)
    assert len(set(seeds)) == 4
    torch.manual_seed(0)
    seed_copies(devices)
    assert seeds[4:] == seeds[:2]


def test_copies_on_the_host_take_nothing_from_the_generator() -> None:
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    seed_copies([torch.device("cpu")] * 2)
    assert torch.equal(torch.rand(4), expected)
