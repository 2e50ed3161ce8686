"""Masked samples: which tokens are masked, what counts, and which models may have them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainmaster import data
from trainmaster.contract.config import TrainingConfig
from trainmaster.data import IGNORED
from trainmaster.data.skipped_samples import Skips
from trainmaster.errors import ConfigError
from trainmaster.models import allowed_parallelism

CONTEXT, GLOBAL_BATCH, TOKENS, MASK = 40, 6, 40 * 9 + 13, 999


def config(folder: Path, name: str = "bert", seed: int = 0, **options: Any) -> TrainingConfig:
    model = {"layers": 1, "heads": 2, "width": 8, "context": CONTEXT}
    if name != "gpt":
        model["vocabulary"] = MASK + 1
    source = "tokens" if "dtype" not in options else "text"
    return TrainingConfig.model_validate(
        {
            "model": {"name": name, "options": model},
            "data": {"source": source, "path": str(folder), "options": options},
            "steps": 10,
            "batch": {"global": GLOBAL_BATCH},
            "seed": seed,
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tokens each of which occurs once, so that a token says where it was."""
    np.save(tmp_path / "tokens.npy", np.arange(100, 100 + TOKENS, dtype=np.uint16))
    return tmp_path


def rows(source: data.Source, consumed: int, slots: range) -> list[tuple[list[int], list[int]]]:
    batch = source.batch(consumed, slots)
    return list(zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True))


def test_a_sample_is_the_same_whichever_rank_reads_it_and_after_any_restart(folder: Path) -> None:
    whole = rows(data.build(config(folder)), 0, range(24))
    ranks = [row for rank in range(3) for row in rows(data.build(config(folder)), 12, range(4 * rank, 4 * rank + 4))]
    assert ranks == whole[12:]
    assert rows(data.build(config(folder, seed=1)), 0, range(24)) != whole


def test_what_is_to_be_told_is_exactly_what_was_there(folder: Path) -> None:
    for inputs, targets in rows(data.build(config(folder)), 0, range(10)):
        told = [i for i, target in enumerate(targets) if target != IGNORED]
        first = min(token - i for i, token in enumerate(inputs) if i not in told and token)
        assert [targets[i] for i in told] == [first + i for i in told]
        assert len(told) in (6, 2)  # 15 % of a whole window's 40 tokens, of the last one's 13


def test_each_epoch_masks_other_tokens_of_each_window(folder: Path) -> None:
    source = data.build(config(folder))
    told: list[set[frozenset[int]]] = []
    for epoch in range(2):
        taken = [frozenset(targets) for _, targets in rows(source, 0, range(epoch * 10, epoch * 10 + 10))]
        told.append(set(taken))
    assert not told[0] & told[1]


@pytest.mark.parametrize("consumed", range(0, 25, 4))
def test_the_tokens_that_count_are_known_without_reading_them(folder: Path, consumed: int) -> None:
    source = data.build(config(folder))
    source.skips = Skips([(2, 5), (17, 18)])
    for count in (1, 6, 13):
        batch = source.batch(consumed, range(count))
        assert source.valid_tokens(consumed, count) == batch.valid_tokens == int((batch.targets != IGNORED).sum())


def test_eight_of_ten_are_masked_one_is_random_and_one_is_kept(folder: Path) -> None:
    source = data.build(config(folder))
    found: Counter[str] = Counter()
    for inputs, targets in rows(source, 0, range(2000)):
        for token, target in zip(inputs, targets, strict=True):
            if target != IGNORED:
                found["mask" if token == MASK else "kept" if token == target else "random"] += 1
    shares = {kind: count / found.total() for kind, count in found.items()}
    assert shares == pytest.approx({"mask": 0.8, "random": 0.1, "kept": 0.1}, abs=0.02)


def test_all_places_are_masked_alike(folder: Path) -> None:
    targets = data.build(config(folder)).batch(0, range(4000)).targets
    full = targets[(targets != IGNORED).sum(1) == 6]
    shares = (full != IGNORED).double().mean(0)
    assert shares.min() > 0.15 - 0.03
    assert shares.max() < 0.15 + 0.03


def test_random_bytes_of_text_are_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 4000)
    given = config(tmp_path).model_dump(mode="json", by_alias=True)
    given |= {"data": {"path": str(tmp_path)}}
    batch = data.build(TrainingConfig.model_validate(given)).batch(0, range(400))
    tokens = {token for token in batch.inputs.unique().tolist() if token != MASK}
    assert max(tokens) < 256
    assert len(tokens) > 100


@pytest.mark.parametrize(("name", "objective"), [("llama", "MaskedTokens"), ("bert", "NextToken")])
def test_samples_for_another_kind_of_model_are_refused(folder: Path, name: str, objective: str) -> None:
    right = {"llama": "NextToken", "bert": "MaskedTokens"}[name]
    with pytest.raises(ConfigError) as refused:
        data.build(config(folder, name, objective=objective))
    assert str(refused.value) == (
        f"data.options.objective: {objective} isn't what model {name} is made for; {right} would be right"
    )
    assert data.build(config(folder, name, objective=right)).samples == 10


def test_a_mask_that_is_a_byte_of_the_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 4000)
    given = config(tmp_path).model_dump(mode="json", by_alias=True)
    given["data"], given["model"]["options"]["vocabulary"] = {"path": str(tmp_path)}, 256
    with pytest.raises(ConfigError, match=r"model\.options\.mask_token: 255 is one of the bytes of the data, too; 256"):
        data.build(TrainingConfig.model_validate(given))


def test_an_encoder_keeps_its_sequences_whole(folder: Path) -> None:
    given = config(folder).model_dump(mode="json", by_alias=True) | {"parallelism": {"cp": 2}}
    with pytest.raises(
        ConfigError, match=r"^parallelism\.cp: model bert can't be taken apart along cp; only 1 would do$"
    ):
        allowed_parallelism.validate(TrainingConfig.model_validate(given))
