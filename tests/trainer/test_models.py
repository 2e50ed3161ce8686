"""Models: their options, their initial weights, what they compute."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from trainmaster import models
from trainmaster.contract.config import ModelConfig
from trainmaster.errors import ConfigError
from trainmaster.models.gpt import GPT
from trainmaster.models.initialization import initialize
from trainmaster.models.model_options import GPTOptions, MoEOptions
from trainmaster.models.moe_router_and_balance import MoE

SMALL = {"layers": 2, "heads": 2, "width": 16, "context": 12}


CAUSAL = ["gpt", "llama", "moe"]
VOCABULARY = {"bert": 264}
NAMES = ["bert", *CAUSAL]


def small(name: str = "gpt", **options: Any) -> ModelConfig:
    return ModelConfig(name=name, options={**SMALL, **options})


@pytest.mark.parametrize("name", NAMES)
def test_logits_cover_all_bytes_at_each_position(name: str) -> None:
    tokens = torch.zeros(3, 12, dtype=torch.int64)
    assert models.build(small(name), seed=0)(tokens).shape == (3, 12, VOCABULARY.get(name, 256))


BUILD_EACH = """
import json, os, sys, traceback
import torch._dynamo  # as trainmaster.parallel does first of all, in two seconds

assert not any(name.partition(".")[0] == "trainmaster" for name in sys.modules)
codes = {}
for name in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        try:
            from trainmaster import models

            models.build(models.ModelConfig(name=name), 0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    codes[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps(codes))
"""


@pytest.fixture(scope="module")
def built_alone() -> dict[str, int]:
    """The exit code of a process for each model, forked from one that has imported torch and nothing of ours."""
    done = subprocess.run([sys.executable, "-c", BUILD_EACH, *NAMES], capture_output=True, text=True, check=True)
    sys.stderr.write(done.stderr)
    codes: dict[str, int] = json.loads(done.stdout)
    return codes


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_built_by_a_process_that_has_imported_nothing_else(name: str, built_alone: dict[str, int]) -> None:
    assert built_alone[name] == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, []),
        ({"kv_heads": 2, "hidden": 48, "norm_eps": 1e-5}, []),
        ({"context": 99}, []),
        ({"width": 32}, ["width"]),
        ({"width": 32, "hidden": 64, "layers": 3}, ["width", "hidden", "layers"]),
        ({"kv_heads": 1}, ["kv_heads"]),
        ({"rope_theta": 5.0}, ["rope_theta"]),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_model_is_told_by_the_options_that_differ(
    options: dict[str, Any], named: list[str]
) -> None:
    saved = models.described(small("llama"))
    if not named:
        models.check_same(saved, small("llama", **options), "checkpoint x")
        return
    with pytest.raises(ConfigError) as refused:
        models.check_same(saved, small("llama", **options), "checkpoint x")
    lines = str(refused.value).splitlines()
    assert {line.partition(": ")[0] for line in lines} == {f"model.options.{name}" for name in named}
    assert all("but checkpoint x was made with" in line for line in lines)


def test_an_option_that_was_left_out_of_the_job_is_compared_too() -> None:
    saved = models.described(small("llama", rope_theta=5.0))
    with pytest.raises(ConfigError, match=r"rope_theta: is 10000\.0, but checkpoint x was made with 5\.0; 5\.0 would"):
        models.check_same(saved, small("llama"), "checkpoint x")


def test_each_position_of_an_encoder_sees_all_others() -> None:
    model = models.build(small("bert"), seed=0)
    tokens = torch.zeros(1, 12, dtype=torch.int64)
    first, last = tokens.clone(), tokens.clone()
    first[0, 0] = last[0, -1] = 7
    for changed in (first, last):
        assert (model(changed) != model(tokens)).any(-1).all()


def test_a_mask_outside_of_the_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model\.options: mask_token 9 is no token of vocabulary 9$"):
        models.validate(small("bert", vocabulary=9, mask_token=9))


@pytest.mark.parametrize("name", CAUSAL)
def test_a_position_sees_nothing_that_follows_it(name: str) -> None:
    model = models.build(small(name), seed=0)
    tokens = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any()


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_bytes_matters(name: str) -> None:
    model = models.build(small(name), seed=0)
    one, other = torch.tensor([[65, 66, 67]]), torch.tensor([[66, 65, 67]])
    assert not torch.allclose(model(one)[:, -1], model(other)[:, -1])


@pytest.mark.parametrize("name", NAMES)
def test_an_untrained_model_is_about_as_good_as_guessing(name: str) -> None:
    model = models.build(small(name, width=64), seed=0)
    tokens = torch.randint(0, 256, (8, 12), generator=torch.Generator().manual_seed(1))
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    assert 5.5 < loss.item() < 7.0


def test_weights_depend_on_the_seed_and_not_on_the_global_generator() -> None:
    torch.manual_seed(1)
    first = models.build(small(), seed=5).state_dict()
    torch.manual_seed(2)
    torch.rand(100)
    second = models.build(small(), seed=5).state_dict()
    other = models.build(small(), seed=6).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_a_parameter_is_the_same_whatever_the_order_of_construction() -> None:
    model = GPT(GPTOptions(**SMALL))
    children = dict(model._modules)
    model._modules.clear()
    model._modules.update(reversed(children.items()))
    initialize(model, seed=5)
    expected = models.build(small(), seed=5).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_parameters_of_equal_shape_start_differently() -> None:
    weights = models.build(small(), seed=0).state_dict()
    assert not torch.equal(weights["blocks.0.mlp.up.weight"], weights["blocks.1.mlp.up.weight"])


def test_a_model_tells_its_blocks() -> None:
    assert len(list(models.build(small(layers=3), seed=0).blocks)) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layer": 2}, r"model.options: 'layer' is unknown; did you mean layers\?"),
        ({"layers": "2"}, r"model.options.layers: .* valid integer; got '2'"),
        ({"layers": 0}, r"model.options.layers: .* greater than or equal to 1; got 0"),
        (
            {"width": 130, "heads": 4},
            r"width / heads must be an even whole number: width 130 / heads 4 = 32.5; width 128 would be possible",
        ),
        (
            {"width": 12, "heads": 4},
            r"width / heads must be an even whole number: width 12 / heads 4 = 3; width 16 would be possible",
        ),
        ({"dropout": 0.1}, r"dropout 0.1 is not supported yet, only 0"),
    ],
)
def test_a_wrong_option_is_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        models.validate(ModelConfig(options=options))


def test_all_wrong_options_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        models.validate(ModelConfig(options={"layer": 2, "heads": 0, "depth": 1}))
    assert len(str(refusal.value).splitlines()) == 3


def test_an_unknown_model_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"model.name: 'gtp' is unknown; did you mean gpt\?"):
        models.build(ModelConfig(name="gtp"), seed=0)


def test_options_are_checked_without_torch_and_numpy() -> None:
    imported = "trainmaster.data.text_files, trainmaster.rank.injected_faults, trainmaster.models.allowed_parallelism"
    code = f"import sys, {imported}; sys.exit(bool({{'torch', 'numpy'}} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_differences_of_positions_matter() -> None:
    model = models.build(small("llama"), seed=0)
    tokens = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(tokens), model(tokens, torch.arange(5, 17)))
    assert not torch.allclose(model(tokens), model(tokens, torch.arange(0, 24, 2)))


def test_heads_of_queries_share_keys_and_values() -> None:
    model = models.build(small("llama", heads=4, kv_heads=2), seed=0)
    attention = model.blocks[0].attention
    assert (attention.query.weight.shape, attention.key.weight.shape) == ((16, 16), (8, 16))
    whole = models.build(small("llama", heads=4), seed=0)
    state = model.state_dict()
    for name, weight in state.items():
        if ".key." in name or ".value." in name:
            state[name] = weight.unflatten(0, (2, 4)).repeat_interleave(2, 0).flatten(0, 1)
    whole.load_state_dict(state)
    tokens = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(tokens), whole(tokens))


def test_each_token_gets_the_weighted_sum_of_the_experts_that_it_chose() -> None:
    torch.manual_seed(0)
    moe = MoE(MoEOptions(width=16, hidden=8, experts=5, experts_per_token=3, balance=0.0))
    for parameter in moe.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 7, 16)
    y = moe(x)
    assert moe.last_choices is not None
    assert moe.last_choices.shape == (2, 7, 3)
    for sample in range(2):
        for position in range(7):
            token = x[sample, position]
            probabilities = moe.router(token).softmax(-1)
            best = probabilities.topk(3).indices
            expected = torch.zeros(16)
            for expert in best:
                gate, up, down = (getattr(moe.experts, name)[expert] for name in ("gate", "up", "down"))
                output = down @ (torch.nn.functional.silu(gate @ token) * (up @ token))
                expected += probabilities[expert] / probabilities[best].sum() * output
            torch.testing.assert_close(y[sample, position], expected)


def test_the_balance_is_one_per_token_when_all_experts_are_used_alike() -> None:
    moe = MoE(MoEOptions(width=16, experts=4, experts_per_token=2))
    even = torch.full((1, 4, 4), 0.25)
    choices = torch.tensor([[[0, 1], [2, 3], [0, 1], [2, 3]]])
    assert moe._imbalance(even, choices).item() == pytest.approx(4.0)
    certain = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(1, 4, 4)
    always = torch.tensor([[[0, 1]] * 4])
    assert moe._imbalance(certain, always).item() == pytest.approx(8.0)


def test_the_balance_loss_reaches_the_router_and_changes_no_output() -> None:
    options = {"width": 16, "hidden": 8, "experts": 4}
    gradients = []
    for balance in (0.0, 0.1):
        torch.manual_seed(0)
        moe = MoE(MoEOptions(**options, balance=balance))
        for parameter in moe.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        y = moe(torch.randn(2, 6, 16))
        y.sum().backward()
        gradients.append((y.detach(), moe.router.weight.grad))
    torch.testing.assert_close(gradients[0][0], gradients[1][0])
    assert not torch.allclose(gradients[0][1], gradients[1][1])


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("llama", {"heads": 4, "kv_heads": 3}, "model.options: kv_heads 3 doesn't divide heads 4; 1, 2, 4 would"),
        ("moe", {"experts": 2, "experts_per_token": 3}, "model.options: experts_per_token 3 is more than experts 2"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        models.validate(small(name, **options))
    assert sentence in str(refused.value)
