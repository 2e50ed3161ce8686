from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import trainmaster as tm
from trainmaster import models
from trainmaster.contract.config import ModelConfig, TrainingConfig
from trainmaster.errors import ConfigError
from trainmaster.models.cnn import CNN
from trainmaster.parallel.blocks import recompute

LAYERS = 3
SMALL = {"layers": LAYERS, "heads": 2, "width": 16, "context": 8}
HOW = ["None", "Full", "Selective"]


class Counts(TorchDispatchMode):  # type: ignore[misc]
    """Of operations, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.of[func.name().removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


def model(name: str, how: str) -> nn.Module:
    found = models.build(ModelConfig(name=name, options=SMALL if name != "cnn" else {}), seed=1)
    if how != "None":
        recompute.apply(found.blocks, how)
    return found


def trained(net: nn.Module) -> tuple[Tensor, dict[str, Tensor], Counter[str]]:
    """(loss, gradients, counts of operations) of one pass."""
    inputs = torch.arange(16).reshape(2, 8)
    if isinstance(net, CNN):
        inputs = inputs[:, None, None].expand(2, 1, 8, 8) / 16
    with Counts() as counts:
        loss = net(inputs).float().square().sum()
        loss.backward()
    return loss.detach(), {name: p.grad for name, p in net.named_parameters() if p.grad is not None}, counts.of


@pytest.mark.parametrize("name", list(models.MODELS))
@pytest.mark.parametrize("how", HOW[1:])
def test_losses_and_gradients_have_the_same_bits(name: str, how: str) -> None:
    loss, gradients, _ = trained(model(name, "None"))
    again, others, _ = trained(model(name, how))
    assert torch.equal(loss, again)
    assert gradients.keys() == others.keys() == dict(model(name, how).named_parameters()).keys()
    assert all(torch.equal(gradient, others[name]) for name, gradient in gradients.items())


@pytest.mark.parametrize("how", HOW[1:])
def test_a_block_drops_the_same_the_second_time(how: str) -> None:
    found = []
    for apply in (lambda block: None, lambda block: recompute.apply([block], how)):
        torch.manual_seed(0)
        block = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 16))
        apply(block)
        for _ in range(2):  # the second pass begins elsewhere in the generator's sequence
            block(torch.ones(4, 16)).square().sum().backward()
        found.append([parameter.grad for parameter in block.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_reversible_blocks_with_dropout_are_refused() -> None:
    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, p: float) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Dropout(p))

    recompute.apply([Block(0.0)], "Reversible")
    with pytest.raises(ConfigError, match=r"^recompute: Reversible .* Block has dropout, .* Full would do, or p 0$"):
        recompute.apply([Block(0.1)], "Reversible")


def test_full_computes_all_of_a_block_again_and_selective_all_but_products() -> None:
    plain, full, selective = (trained(model("llama", how))[2] for how in HOW)
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    assert (plain["silu"], full["silu"], selective["silu"]) == (LAYERS, 2 * LAYERS, 2 * LAYERS)
    assert (plain[attention], full[attention], selective[attention]) == (LAYERS, 2 * LAYERS, LAYERS)
    assert full["mm"] > plain["mm"] == selective["mm"]


def test_without_gradients_nothing_is_kept_or_computed_again() -> None:
    net = model("llama", "Full")
    with torch.no_grad(), Counts() as counts:
        net(torch.zeros(1, 8, dtype=torch.int64))
    assert counts.of["silu"] == LAYERS


def test_a_job_that_recomputes_nothing_says_nothing_of_it() -> None:
    fields: dict[str, Any] = {"data": {"path": "@stdlib"}, "steps": 1, "batch": {"global": 1}}
    assert "recompute" not in TrainingConfig.model_validate(fields).model_dump()
    assert TrainingConfig.model_validate({**fields, "recompute": "Full"}).model_dump()["recompute"] == "Full"


def test_devices_of_one_process_recompute_nothing() -> None:
    with pytest.raises(ConfigError, match="`recompute` cannot be combined with `devices`"):
        tm.parallelize(  # type: ignore[call-overload]
            model("gpt", "None"), {"dpReplicate": 1}, devices=["cpu"], recompute="Full"
        )
