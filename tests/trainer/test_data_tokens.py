"""The source of token files: what lies in a batch, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainmaster import data
from trainmaster.contract.config import TrainingConfig
from trainmaster.data import IGNORED
from trainmaster.data.source_options import TokenOptions
from trainmaster.data.token_files import find
from trainmaster.errors import ConfigError, DataError

CONTEXT = 8
VOCABULARY = 1000


def config(path: Path, vocabulary: int = VOCABULARY, **options: Any) -> TrainingConfig:
    model = {"context": CONTEXT, "width": 8, "heads": 2, "vocabulary": vocabulary}
    return TrainingConfig.model_validate(
        {
            "model": {"name": "llama", "options": model},
            "data": {"source": "tokens", "path": str(path), "options": options},
            "steps": 10,
            "batch": {"global": 4},
        }
    )


def numbers(count: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count)


def sequence(tokens: Any) -> list[int]:
    """Of a file or folder, all of it."""
    return np.frombuffer(tokens.read(0, tokens.size), tokens.dtype).tolist()


@pytest.mark.parametrize("kind", ["uint16", "uint32", "int32", "int64"])
@pytest.mark.parametrize("form", ["npy", "bin"])
def test_files_of_each_kind_hold_the_tokens_that_were_written(tmp_path: Path, kind: str, form: str) -> None:
    path, wanted = tmp_path / f"tokens.{form}", numbers(100).astype(kind)
    if form == "npy":
        np.save(path, wanted)
    else:
        wanted.tofile(path)
    found = find(str(path), TokenOptions.model_validate({"dtype": kind} if form == "bin" else {}))
    assert (found.kind, found.size) == (kind, 100)
    assert sequence(found) == wanted.tolist()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(sum), st.data())
def test_files_of_a_folder_follow_each_other(tmp_path: Path, sizes: list[int], draw: st.DataObject) -> None:
    wanted = numbers(sum(sizes)).astype("uint16")
    for old in tmp_path.iterdir():
        old.unlink()
    for index, part in enumerate(np.split(wanted, np.cumsum(sizes)[:-1])):
        np.save(tmp_path / f"part-{index}.npy", part)
    found = find(str(tmp_path), TokenOptions())
    start = draw.draw(st.integers(0, found.size))
    stop = draw.draw(st.integers(start, found.size))
    assert np.frombuffer(found.read(start, stop), found.dtype).tolist() == wanted[start:stop].tolist()


def test_each_token_but_the_first_is_predicted_once_an_epoch(tmp_path: Path) -> None:
    wanted = numbers(101).astype("uint16")
    np.save(tmp_path / "tokens.npy", wanted)
    source = data.build(config(tmp_path / "tokens.npy"))
    batch = source.batch(0, range(source.samples))
    assert sorted(t for row in batch.targets.tolist() for t in row if t != IGNORED) == sorted(wanted[1:].tolist())
    assert batch.valid_tokens == source.tokens == 100
    assert source.kind == "tokens"


def test_a_copy_has_the_same_fingerprint_and_other_tokens_another_one(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "tokens.npy", numbers(100, seed).astype("uint16"))
    a, b, c = (data.build(config(tmp_path / name)).fingerprint for name in "abc")
    assert a == b != c


def test_tokens_that_the_model_does_not_know_are_refused_before_training(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.append(numbers(100), VOCABULARY).astype("uint16"))
    with pytest.raises(DataError, match=f"holds token {VOCABULARY}, but the model knows {VOCABULARY}"):
        data.build(config(tmp_path))


def test_the_wrong_kind_of_numbers_shows(tmp_path: Path) -> None:
    np.full(100, -7, np.int32).tofile(tmp_path / "tokens.bin")
    with pytest.raises(DataError, match=r"holds token -7; .*data.options.dtype may be wrong"):
        data.build(config(tmp_path, dtype="int32"))


def test_a_token_that_no_probe_saw_ends_its_batch(tmp_path: Path) -> None:
    many = np.zeros(2_000_000, np.uint16)
    many[4000] = VOCABULARY
    np.save(tmp_path / "tokens.npy", many)
    source = data.build(config(tmp_path))
    positions = source.order(0, source.samples).tolist()  # type: ignore[attr-defined]
    at = positions.index(4000 // CONTEXT)
    with pytest.raises(DataError, match=f"holds token {VOCABULARY}"):
        source.batch(0, range(at, at + 1))


def broken(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def test_what_holds_no_tokens_is_refused_in_words(tmp_path: Path) -> None:
    np.save(tmp_path / "matrix.npy", np.zeros((2, 2), np.uint16))
    np.save(tmp_path / "real.npy", np.zeros(2))
    np.save(tmp_path / "short.npy", np.zeros(8, np.uint16))
    broken(tmp_path, "short.npy", (tmp_path / "short.npy").read_bytes()[:-1])
    (tmp_path / "empty").mkdir()
    cases = {
        tmp_path / "none": "doesn't exist; a file of tokens is expected",
        tmp_path / "empty": "holds no .npy and no .bin file",
        tmp_path / "matrix.npy": "is no one-dimensional array",
        tmp_path / "real.npy": "holds '<f8'; an array of uint16, uint32, int32, int64 is expected",
        tmp_path / "short.npy": "but its header tells of 8 numbers of uint16",
        broken(tmp_path, "odd.bin", b"123"): "has 3 bytes, which is no multiple of the size of uint16",
        broken(tmp_path, "text.npy", b"hello, world"): "is no one-dimensional array",
        broken(tmp_path, "void.bin", b""): "holds no tokens",
    }
    for path, words in cases.items():
        with pytest.raises(DataError, match=words):
            find(str(path), TokenOptions())


def test_files_of_two_kinds_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(4, np.uint16))
    np.save(tmp_path / "b.npy", np.zeros(4, np.int64))
    with pytest.raises(DataError, match=r"b\.npy has dtype int64, but .*a\.npy has uint16"):
        find(str(tmp_path), TokenOptions())


def test_too_few_tokens_and_unknown_options_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", numbers(20).astype("uint16"))
    with pytest.raises(DataError, match="holds 20 tokens, which is 3 windows of 8; one global batch takes 4"):
        data.build(config(tmp_path))
    with pytest.raises(ConfigError, match="dtype"):
        data.build(config(tmp_path, dtype="float"))
