"""fp8: linear layers of blocks in 8 bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from tests.trainer.job import Job
from tests.trainer.ranks import Ranks
from trainmaster.contract.config import TrainingConfig
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.errors import ConfigError
from trainmaster.parallel.blocks import float8


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int = 32, hidden: int = 48, bias: bool = False) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x)


def blocks(**sizes: int) -> tuple[Block, Block]:
    """(one that computes in 8 bits, the same in bf16)."""
    torch.manual_seed(1)
    plain, other = Block(**sizes).bfloat16(), Block(**sizes).bfloat16()
    other.load_state_dict(plain.state_dict())
    float8.apply([other], "cpu")
    return other, plain


def rounded(x: Tensor, kind: torch.dtype) -> Tensor:
    """As 8 bits hold it, by hand."""
    scale = x.abs().max().float() / torch.finfo(kind).max
    return (x.float() / scale).to(kind).float() * scale


@pytest.mark.parametrize("tokens", [1, 5, 16, 33])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_those_of_rounded_factors(tokens: int, bias: bool) -> None:
    block, _ = blocks(bias=bias)
    x = torch.randn(2, tokens, 32).bfloat16().requires_grad_()
    y = block(x)
    grad = torch.randn_like(y)
    y.backward(grad)

    weight, flat = rounded(block.up.weight.detach(), torch.float8_e4m3fn), rounded(x.detach(), torch.float8_e4m3fn)
    of_y = rounded(grad, torch.float8_e5m2)
    sums = flat @ weight.t() + (block.up.bias.detach().float() if bias else 0.0)
    digits = {"rtol": 2**-7, "atol": 2**-7}  # of bf16
    torch.testing.assert_close(y.detach().float(), sums, **digits)
    assert x.grad is not None
    torch.testing.assert_close(x.grad.float(), of_y @ weight, **digits)
    assert block.up.weight.grad is not None
    expected = of_y.flatten(0, 1).t() @ flat.flatten(0, 1)
    torch.testing.assert_close(block.up.weight.grad.float(), expected, rtol=2**-7, atol=2**-5)


@pytest.mark.parametrize("sizes", [{"width": 24}, {"hidden": 40}], ids=["width", "hidden"])
def test_sizes_that_no_kernel_has_stay_in_bf16(sizes: dict[str, int]) -> None:
    block, plain = blocks(**sizes)
    x = torch.randn(4, sizes.get("width", 32)).bfloat16()
    assert torch.equal(block(x), plain(x))
    whole, same = blocks()
    x = torch.randn(4, 32).bfloat16()
    assert not torch.equal(whole(x), same(x))


def test_no_tokens_are_none() -> None:
    block, _ = blocks()
    assert block(torch.empty(0, 32).bfloat16()).shape == (0, 48)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_shows(value: float) -> None:
    block, _ = blocks()
    x = torch.randn(4, 32).bfloat16()
    x[1, 2] = value
    assert not block(x)[1].isfinite().any()


def test_zeros_stay_zeros() -> None:
    block, _ = blocks()
    assert not block(torch.zeros(4, 32).bfloat16()).any()


def test_an_input_is_kept_in_a_byte_per_number() -> None:
    block, plain = blocks()
    x = torch.randn(16, 32).bfloat16().requires_grad_()

    def kept(module: nn.Module) -> set[tuple[torch.dtype, tuple[int, ...]]]:
        found = set()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: found.add((t.dtype, tuple(t.shape))) or t, lambda t: t):
            module(x)
        return found

    assert (torch.float8_e4m3fn, (16, 32)) in kept(block)
    assert (torch.bfloat16, (16, 32)) not in kept(block)
    assert (torch.bfloat16, (16, 32)) in kept(plain)


def test_only_blocks_compute_so() -> None:
    block, _ = blocks()
    x, weight = torch.randn(16, 32).bfloat16(), torch.randn(48, 32).bfloat16()
    before = F.linear(x, weight)
    block(x)
    assert torch.equal(F.linear(x, weight), before)


def test_a_gpu_without_8_bits_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with pytest.raises(ConfigError, match=r"fp8 needs a GPU of compute capability 8\.9 .* has 8\.0; bf16 would do"):
        float8.check("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    float8.check("cuda")


def test_reversible_blocks_in_8_bits_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"precision fp8 rounds .* use precision bf16, or recompute Full"):
        TrainingConfig.model_validate(
            {
                "data": {"path": "@stdlib"},
                "steps": 1,
                "batch": {"global": 2},
                "precision": "fp8",
                "recompute": "Reversible",
            }
        )


@pytest.mark.processes
def test_a_stopped_and_resumed_run_has_the_same_bits(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    def job(name: str, precision: str = "fp8") -> Job:
        return Job(ranks, tmp_path / name, text, parallelism={"dpShard": 2}, precision=precision)

    whole, parted, other = job("whole"), job("parted"), job("other", "bf16")
    assert whole.round(1).codes == [0, 0]
    assert parted.round(1, agent=True, stop_at=4, stop_bound=1).codes == [ExitCode.SAVED] * 2
    assert parted.round(2, agent=True).codes == [0, 0]
    assert parted.losses == whole.losses
    assert parted.final == {**whole.final, "round": 2}
    assert whole.losses[9] < whole.losses[1]
    assert other.round(1).codes == [0, 0]
    assert other.losses != whole.losses
