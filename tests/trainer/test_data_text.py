"""The text source: what lies in a batch, what counts, and what is refused."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import pytest
import torch

from trainmaster import data
from trainmaster.contract.config import TrainingConfig
from trainmaster.data import IGNORED, Batch, Source
from trainmaster.data.source_options import TextOptions
from trainmaster.data.text_files import find
from trainmaster.errors import ConfigError, DataError

CONTEXT = 8
GLOBAL_BATCH = 12


def config(folder: Path | str, global_batch: int = GLOBAL_BATCH, **options: object) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {
            "model": {"options": {"context": CONTEXT, "width": 8, "heads": 2}},
            "data": {"path": str(folder), "options": options},
            "steps": 10,
            "batch": {"global": global_batch},
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of all kinds: nested, empty, one byte short, hidden, binary."""
    root = tmp_path / "texts"
    (root / "b" / "c").mkdir(parents=True)
    (root / ".hidden").mkdir()
    (root / "a.txt").write_bytes(bytes(range(1, 100)))
    (root / "b" / "c" / "deep.py").write_bytes(b"x = 1\n" * 9)
    (root / "b" / "one.txt").write_bytes(b"!")
    (root / "b" / "empty.txt").write_bytes(b"")
    (root / "b" / "image.png").write_bytes(b"PNG\0\1\2")
    (root / ".hidden" / "secret.txt").write_bytes(b"secret")
    return root


LONG_TEXT = bytes(range(1, 100)) + b"\0" + b"x = 1\n" * 9 + b"\0" + b"!"


def rows(batch: Batch) -> list[tuple[list[int], list[int]]]:
    return list(zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True))


def whole_epoch(source: Source) -> list[tuple[list[int], list[int]]]:
    return rows(source.batch(0, range(source.samples)))


def test_the_files_follow_each_other_by_name_with_a_nul_between_them(folder: Path) -> None:
    text = find(str(folder), TextOptions())
    assert text.names == ["a.txt", "b/c/deep.py", "b/one.txt"]
    assert text.read(0, text.size) == LONG_TEXT


@pytest.mark.parametrize("start", range(0, 156, 5))
@pytest.mark.parametrize("length", [0, 1, 2, 60])
def test_any_range_of_the_long_text_can_be_read(folder: Path, start: int, length: int) -> None:
    text = find(str(folder), TextOptions())
    stop = min(start + length, text.size)
    start = min(start, stop)
    assert text.read(start, stop) == LONG_TEXT[start:stop]


def test_each_byte_but_the_first_is_predicted_once_an_epoch(folder: Path) -> None:
    source = data.build(config(folder))
    predicted = sorted(t for _, targets in whole_epoch(source) for t in targets if t != IGNORED)
    assert predicted == sorted(LONG_TEXT[1:])
    assert source.tokens == len(LONG_TEXT) - 1


def test_a_target_is_the_byte_after_its_input(folder: Path) -> None:
    for inputs, targets in whole_epoch(data.build(config(folder))):
        valid = [t for t in targets if t != IGNORED]
        assert bytes(inputs[: len(valid)] + valid[-1:]) in LONG_TEXT
        assert inputs[1 : len(valid)] == valid[:-1]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6])
def test_all_world_sizes_see_the_same_samples(folder: Path, world: int) -> None:
    expected = rows(data.build(config(folder)).batch(7, range(GLOBAL_BATCH)))
    share = GLOBAL_BATCH // world
    seen = []
    for rank in range(world):
        seen += rows(data.build(config(folder)).batch(7, range(rank * share, (rank + 1) * share)))
    assert seen == expected


def test_the_valid_tokens_of_a_step_are_known_ahead(folder: Path) -> None:
    source = data.build(config(folder))
    counts = set()
    for consumed in range(0, 5 * GLOBAL_BATCH, GLOBAL_BATCH):
        batch = source.batch(consumed, range(GLOBAL_BATCH))
        counted = int((batch.targets != IGNORED).sum())
        assert source.valid_tokens(consumed, GLOBAL_BATCH) == batch.valid_tokens == counted
        counts.add(counted)
    assert len(counts) > 1, "the short window should be in some of these steps"


def test_tokens_are_int64_of_the_shape_of_the_slots(folder: Path) -> None:
    batch = data.build(config(folder)).batch(0, range(3, 8))
    assert batch.inputs.shape == batch.targets.shape == (5, CONTEXT)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64


def test_a_copy_of_the_data_has_the_same_fingerprint(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    os.utime(tmp_path / "copy" / "a.txt", (0, 0))
    assert data.build(config(folder)).fingerprint == data.build(config(tmp_path / "copy")).fingerprint


@pytest.mark.parametrize("change", ["rename", "grow", "edit", "remove"])
def test_changed_data_has_another_fingerprint(folder: Path, change: str) -> None:
    before = data.build(config(folder)).fingerprint
    file = folder / "b" / "c" / "deep.py"
    if change == "rename":
        file.rename(file.with_name("deeper.py"))
    elif change == "grow":
        file.write_bytes(file.read_bytes() + b"#")
    elif change == "edit":
        file.write_bytes(file.read_bytes().replace(b"1", b"2"))
    else:
        file.unlink()
    assert data.build(config(folder)).fingerprint != before


def test_the_unigram_entropy_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"ab" * 100)
    assert find(str(tmp_path), TextOptions()).unigram_entropy() == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("**/*.txt", ["a.txt", "b/one.txt"]),
        ("*.txt", ["a.txt"]),
        ("b/**", ["b/c/deep.py", "b/image.png", "b/one.txt"]),
        ("**/*.p?", ["b/c/deep.py"]),
    ],
)
def test_a_glob_chooses_files_and_takes_them_as_they_are(folder: Path, glob: str, names: list[str]) -> None:
    assert find(str(folder), TextOptions(glob=glob)).names == names


def test_a_linked_file_is_followed_and_a_linked_folder_is_not(folder: Path) -> None:
    (folder / "link.txt").symlink_to(folder / "a.txt")
    (folder / "loop").symlink_to(folder)
    assert find(str(folder), TextOptions()).names == ["a.txt", "b/c/deep.py", "b/one.txt", "link.txt"]


def test_the_standard_library_is_real_text_without_tests_and_site_packages() -> None:
    text = find("@stdlib", TextOptions())
    assert "argparse.py" in text.names
    assert not [n for n in text.names if "site-packages" in n or "/test/" in f"/{n}" or not n.endswith(".py")]
    assert text.size > 2**22


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: shutil.rmtree(folder), "doesn't exist; a folder of text files is expected, or @stdlib"),
        (lambda folder: [f.unlink() for f in folder.rglob("*") if f.is_file()], "holds no text file"),
        (lambda folder: (shutil.rmtree(folder), folder.write_text("x")), "is not a folder"),
    ],
)
def test_data_that_is_not_there_is_refused_in_words(folder: Path, spoil, words: str) -> None:  # type: ignore[no-untyped-def]
    spoil(folder)
    with pytest.raises(DataError, match=words) as refusal:
        data.build(config(folder))
    assert str(folder) in str(refusal.value)


def test_data_that_cannot_fill_a_global_batch_is_refused_with_the_numbers(folder: Path) -> None:
    with pytest.raises(DataError, match=r"holds 156 bytes, which is 20 windows of 8; one global batch takes 24"):
        data.build(config(folder, global_batch=24))


def test_a_glob_without_a_match_is_named_in_the_refusal(folder: Path) -> None:
    with pytest.raises(DataError, match=r"holds no file that matches \*\*/\*\.md"):
        data.build(config(folder, glob="**/*.md"))


def test_an_unknown_option_is_refused_with_the_nearest_known_one(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"data.options: 'globs' is unknown; did you mean glob\?"):
        data.build(config(folder, globs="*"))


def test_an_unknown_source_is_refused_with_the_nearest_known_one(folder: Path) -> None:
    job = config(folder)
    job = job.model_copy(update={"data": job.data.model_copy(update={"source": "test"})})
    with pytest.raises(ConfigError, match=r"data.source: 'test' is unknown; did you mean text\?"):
        data.build(job)


def test_a_file_that_shrinks_while_the_job_runs_is_an_error_and_not_a_short_batch(folder: Path) -> None:
    source = data.build(config(folder))
    (folder / "a.txt").write_bytes(b"short")
    with pytest.raises(DataError, match=r"a.txt has become shorter"):
        whole_epoch(source)
