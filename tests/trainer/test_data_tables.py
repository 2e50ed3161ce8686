"""The sources of tables: Parquet files, and datasets that Hugging Face's `datasets` saved to disk."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tests.trainer.job import Job
from tests.trainer.ranks import Ranks, fault_socket
from tests.trainer.tables import MAKERS, config, counted, found, huggingface, numbers, parquet
from tests.trainer.test_tokenizing import END, TEXTS, tokenizer
from trainmaster import data
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.atomic_replace import temporary
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.data.tables import table_files, table_sequences, token_counts
from trainmaster.data.tables.recently_read import RecentlyRead
from trainmaster.data.tables.table_sequences import ListColumn, TextColumn
from trainmaster.errors import ConfigError, DataError
from trainmaster.rank.injected_faults import Fault, encode
from trainmaster.tools.tokenizing.documents import documents
from trainmaster.tools.tokenizing.writing import write

LISTS = [[*range(n, n + n % 5)] for n in range(40)]
"""Lists of token numbers, some of them empty."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tokenizer(tmp_path / "tokenizer.json")
    return tmp_path / "tokenizer.json"


@pytest.fixture(autouse=True)
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of each test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.mark.parametrize("source", MAKERS)
def test_texts_have_the_same_windows_as_after_tokenize(tmp_path: Path, file: Path, source: str) -> None:
    texts = [*TEXTS, "", "the last one"]  # an empty text is its separator
    path = MAKERS[source](tmp_path / "table", texts)
    about = write(iter(texts), tmp_path / "tokens.npy", file, None)
    tokens = data.build(config("tokens", tmp_path / "tokens.npy", shardTokens=400))
    table = data.build(config(source, path, tokenizer=str(file), shardTokens=400))
    assert (table.kind, table.samples, table.tokens) == (source, tokens.samples, about["tokens"] - 1)
    for start in range(0, 2 * table.samples, 16):  # two epochs, in another order each
        expected, seen = tokens.batch(start, range(16)), table.batch(start, range(16))
        assert seen.inputs.tolist() == expected.inputs.tolist()
        assert seen.targets.tolist() == expected.targets.tolist()


@pytest.mark.parametrize("source", MAKERS)
@pytest.mark.parametrize("kind", [pyarrow.list_(pyarrow.int32()), pyarrow.large_list(pyarrow.uint16())], ids=str)
def test_lists_follow_each_other_with_nothing_between_them(tmp_path: Path, source: str, kind: Any) -> None:
    path = MAKERS[source](tmp_path / "table", pyarrow.array(LISTS, kind), "ids")
    sequence = found(source, path, column="ids")
    assert sequence.counted  # without a read of the column
    wanted = [*itertools.chain(*LISTS)]
    assert numbers(sequence) == wanted
    for start, stop in itertools.combinations(range(0, len(wanted) + 1, 3), 2):
        assert numbers(sequence, start, stop) == wanted[start:stop]


def test_row_groups_say_how_many_tokens_they_hold_and_without_that_they_are_counted(tmp_path: Path) -> None:
    column = pyarrow.array(LISTS, pyarrow.list_(pyarrow.int32()))
    told, untold = (parquet(tmp_path / name, column, "ids", write_statistics=name == "told") for name in ("told", "no"))
    assert found("parquet", told, column="ids").counted
    assert not found("parquet", untold, column="ids").counted
    ends = [counted("parquet", path, column="ids")._ends for path in (told, untold)]
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[0].tolist() == ends[1].tolist()


def test_without_a_tokenizer_a_token_is_a_byte(tmp_path: Path) -> None:
    path = parquet(tmp_path / "table", ["é", "", "ab", "c"])
    sequence = counted("parquet", path)
    assert bytes(numbers(sequence)) == "é\0\0ab\0c\0".encode()
    assert (sequence.unit, sequence.alphabet) == ("bytes", 256)
    assert data.build(config("parquet", path, batch=1)).tokens == 8


def test_a_tokenizer_that_fills_up_or_cuts_texts_is_kept_from_it(tmp_path: Path, file: Path) -> None:
    made = tokenizer(file)
    plain = counted("parquet", parquet(tmp_path / "table", TEXTS), tokenizer=str(file))
    made.enable_padding()
    made.enable_truncation(5)
    made.save(str(file))
    assert numbers(counted("parquet", tmp_path / "table", tokenizer=str(file))) == numbers(plain)
    write(iter(TEXTS), tmp_path / "tokens.npy", file, None)
    assert np.load(tmp_path / "tokens.npy").tolist() == numbers(plain)


def test_a_table_is_not_loaded_whole(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One window takes the row groups that it lies in; what was decoded before them is dropped."""
    path = parquet(tmp_path / "table", TEXTS)
    monkeypatch.setattr(table_sequences, "DECODED_BYTES", 1)
    counted("parquet", path, tokenizer=str(file))
    read: list[int] = []
    batches = table_files.Table.batches
    monkeypatch.setattr(
        table_files.Table, "batches", lambda table, chunk: [read.append(chunk), batches(table, chunk)][1]
    )
    again = counted("parquet", path, tokenizer=str(file))
    assert read == []  # the tokens of each text are known
    assert len(again._chunks) == 6
    again.read(0, 9)
    assert read == [0]
    again.read(again.size - 9, again.size)
    assert read == [0, 2]
    assert isinstance(again, TextColumn)
    assert [*again._decoded._values] == [5]  # only the last one of the second file
    lists = counted("parquet", parquet(tmp_path / "lists", LISTS, "ids"), column="ids")
    assert isinstance(lists, ListColumn)
    read.clear()
    for start in range(0, lists.size - 8, 8):
        lists.read(start, start + 8)
        assert len(lists._decoded._values) == 1
    assert len(read) <= 2 * len(lists._chunks)


def test_what_is_kept_is_bounded_and_the_oldest_goes_first() -> None:
    kept: RecentlyRead[str] = RecentlyRead(5, len)
    for key in (1, 2, 1, 3):
        kept.get(key, lambda key: "x" * (key + 1))
    assert [*kept._values] == [3]  # 2 and 3 letters fit, and then 4 alone
    kept.get(9, lambda key: "x" * 100)
    assert [*kept._values] == [9]


def test_tokens_are_counted_once_and_found_by_later_starts(
    tmp_path: Path, file: Path, temporary_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path / "table", TEXTS)
    beats: list[None] = []
    first = data.build(config("parquet", path, tokenizer=str(file)), tmp_path / "kept", lambda: beats.append(None))
    (name,) = (each.name for each in (tmp_path / "kept").iterdir())
    assert name.startswith("token-counts-")
    assert len(beats) == 2  # a group of texts of each file
    monkeypatch.setattr(TextColumn, "_counts", lambda self: pytest.fail("it counts again"))
    second = data.build(config("parquet", path, tokenizer=str(file)), tmp_path / "kept")
    assert second.batch(3, range(4)).inputs.tolist() == first.batch(3, range(4)).inputs.tolist()


def test_of_many_ranks_of_a_machine_one_counts(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(tmp_path / "table", TEXTS)
    monkeypatch.setattr(token_counts, "POLL_S", 0.001)
    counts, counting, waiting = TextColumn._counts, [], threading.Event()

    def slowly(self: TextColumn) -> Any:
        counting.append(threading.get_ident())
        assert waiting.wait(60)  # another one waits, and says so
        yield from counts(self)

    monkeypatch.setattr(TextColumn, "_counts", slowly)
    sequences = [found("parquet", path, tokenizer=str(file)) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        [*pool.map(lambda each: each.count(tmp_path / "kept", waiting.set), sequences)]
    assert len(counting) == 1
    assert {each.size for each in sequences} == {sequences[0].size}


def test_a_folder_that_cannot_be_written_is_replaced_by_the_temporary_one(
    tmp_path: Path, file: Path, temporary_files: Path
) -> None:
    path = parquet(tmp_path / "table", TEXTS)
    (tmp_path / "kept").write_text("no folder")
    data.build(config("parquet", path, tokenizer=str(file)), tmp_path / "kept" / "inside")
    assert [*temporary_files.rglob("token-counts-*.npy")]


def test_what_a_killed_process_left_is_removed(tmp_path: Path, file: Path, temporary_files: Path) -> None:
    path = parquet(tmp_path / "table", TEXTS)
    sequence = found("parquet", path, tokenizer=str(file))
    sequence.count(None, lambda: None)
    (kept,) = temporary_files.rglob("token-counts-*.npy")
    left = kept.rename(temporary(kept))
    found("parquet", path, tokenizer=str(file)).count(None, lambda: None)
    assert kept.exists()
    assert not left.exists()


def test_a_damaged_file_of_counts_is_made_again(tmp_path: Path, file: Path) -> None:
    path = parquet(tmp_path / "table", TEXTS)
    before = data.build(config("parquet", path, tokenizer=str(file)), tmp_path / "kept")
    (kept,) = (tmp_path / "kept").iterdir()
    kept.write_bytes(kept.read_bytes()[:-9])
    assert data.build(config("parquet", path, tokenizer=str(file)), tmp_path / "kept").tokens == before.tokens


def test_a_copy_has_the_same_fingerprint_and_other_content_another_one(tmp_path: Path, file: Path) -> None:
    other = [text.replace("waits", "comes") for text in TEXTS]
    a, b, c = (parquet(tmp_path / name, texts) for name, texts in (("a", TEXTS), ("b", TEXTS), ("c", other)))
    os.utime(b / "part-0.parquet", (1, 1))
    tokenizer(tmp_path / "smaller.json", words=280)
    same = [found("parquet", path, tokenizer=str(file)).fingerprint for path in (a, b)]
    others = [
        found("parquet", c, tokenizer=str(file)).fingerprint,
        found("parquet", a, tokenizer=str(tmp_path / "smaller.json")).fingerprint,
        found("parquet", a).fingerprint,
    ]
    assert same[0] == same[1]
    assert len({*same, *others}) == 4


def test_before_a_run_starts_options_and_columns_are_checked_and_nothing_is_counted(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path / "table", TEXTS)
    monkeypatch.setattr(TextColumn, "_counts", lambda self: pytest.fail("it counts"))
    for vocabulary in (300, 299):
        asked = config("parquet", path, vocabulary=vocabulary, tokenizer=str(file))
        if vocabulary == 300:
            assert data.check(asked, data.find(asked.data)) == 0
        else:
            with pytest.raises(DataError, match="it has 300 tokens, but the model knows 299"):
                data.check(asked, data.find(asked.data))


def test_too_few_tokens_are_refused_once_they_are_counted(tmp_path: Path) -> None:
    path = parquet(tmp_path / "table", ["abc", "defg"])
    with pytest.raises(DataError, match=r"holds 9 bytes, which is 1 windows of 8; one global batch takes 4"):
        data.build(config("parquet", path))


def test_options_that_do_not_fit_the_column_are_refused(tmp_path: Path, file: Path) -> None:
    texts = parquet(tmp_path / "texts", TEXTS)
    lists = parquet(tmp_path / "lists", LISTS, "ids")
    for path, options, words in (
        (
            lists,
            {"column": "ids", "tokenizer": str(file)},
            r"options\.tokenizer: column 'ids' holds token numbers",
        ),
        (texts, {"separator": END}, r"data\.options\.separator: needs data\.options\.tokenizer"),
        (texts, {"tokenizer": str(tmp_path / "gone.json")}, r"data\.options\.tokenizer: .*gone\.json can't be read"),
        (texts, {"tokenizer": str(file), "separator": "[E]"}, r"has no token '\[E\]'; data\.options\.separator names"),
        (texts, {"tokenizers": "x"}, r"data\.options: 'tokenizers' is unknown; did you mean tokenizer\?"),
    ):
        with pytest.raises(ConfigError, match=words):
            data.build(config("parquet", path, **options))


def broken(folder: Path, name: str, change: Callable[[bytes], bytes]) -> Path:
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    return folder


def test_what_is_no_table_is_refused_in_one_sentence(tmp_path: Path) -> None:
    def made(name: str, column: Any = TEXTS) -> Path:
        return MAKERS["huggingface" if name.startswith("saved") else "parquet"](tmp_path / name, column)

    def stated(name: str, **state: Any) -> Path:
        broken(made(name), "state.json", lambda old: json.dumps({**json.loads(old), **state}).encode())
        return tmp_path / name

    (tmp_path / "void").mkdir()
    (tmp_path / "dict").mkdir()
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    (tmp_path / "a.txt").write_text("no table")
    mixed = made("mixed")
    pyarrow.parquet.write_table(pyarrow.table({"text": [[1]]}), mixed / "z.parquet")
    arrow = "data-00000-of-00002.arrow"
    cases: list[tuple[str, Path, str]] = [
        ("parquet", tmp_path / "none", "doesn't exist; a .parquet file is expected, or a folder of them"),
        ("parquet", tmp_path / "a.txt", "is no .parquet file"),
        ("parquet", tmp_path / "void", "void holds no .parquet file"),
        ("parquet", made("real", [1.5, 2.5]), r"column 'text' holds double; texts or lists of integers would be right"),
        ("parquet", mixed, r"z\.parquet: column 'text' holds lists of integers, but .*part-0\.parquet has texts"),
        (
            "parquet",
            broken(made("cut"), "part-1.parquet", lambda old: old[:-9]),
            r"part-1\.parquet can't be read as",
        ),
        (
            "parquet",
            made("null", [*TEXTS[:35], None]),
            r"part-1\.parquet, row 17: column 'text' holds None, which",
        ),
        ("huggingface", tmp_path / "void", "holds no state.json; a folder is expected that `datasets` wrote"),
        ("huggingface", tmp_path / "dict", r"several datasets \(train, test\); .*/dict/train or .*/dict/test would be"),
        ("huggingface", stated("saved-1", _indices_files=[{}]), r"call flatten_indices\(\) before save_to_disk"),
        ("huggingface", stated("saved-2", _data_files=[{"filename": "x.arrow"}]), r"x\.arrow is one of .* isn't there"),
        ("huggingface", stated("saved-3", _data_files=None), "doesn't say which files the dataset has"),
        ("huggingface", broken(made("saved-4"), arrow, lambda old: old[:-100]), f"{arrow} can't be read as Arrow"),
        ("huggingface", broken(made("saved-5"), arrow, lambda old: old[:-8]), "without the mark of its end"),
        ("huggingface", broken(made("saved-6"), "state.json", lambda old: old[:-1]), r"state\.json is no JSON"),
    ]
    for source, path, words in cases:
        with pytest.raises(DataError, match=words) as refused:
            data.build(config(source, path))
        assert str(refused.value).startswith("data.path: ")
        assert "\n" not in str(refused.value)
    with pytest.raises(DataError, match=r"no column 'words', only id, text; data\.options\.column names another one"):
        data.build(config("parquet", tmp_path / "real", column="words"))


def test_a_null_in_lists_ends_the_batch_that_reads_it(tmp_path: Path) -> None:
    for name, column in (("row", [*LISTS[:37], None]), ("number", [*LISTS[:36], [1, None], [2]])):
        lists = pyarrow.array(column, pyarrow.list_(pyarrow.int32()))
        sequence = counted("parquet", parquet(tmp_path / name, lists, "ids"), column="ids")
        with pytest.raises(DataError, match=r"part-1\.parquet, row group 2: column 'ids' has a missing value"):
            numbers(sequence)


def test_tokens_that_the_model_does_not_know_are_refused(tmp_path: Path) -> None:
    path = huggingface(tmp_path / "table", [*LISTS, [], [1, 300]], "ids")
    with pytest.raises(DataError, match="holds token 300, but the model knows 300"):
        data.build(config("huggingface", path, column="ids"))


@pytest.mark.parametrize("source", MAKERS)
def test_a_file_that_changes_while_it_is_read_is_told_with_the_place(tmp_path: Path, file: Path, source: str) -> None:
    path = MAKERS[source](tmp_path / "table", TEXTS)
    shorter, other, gone = (counted(source, path, tokenizer=str(file)) for _ in range(3))
    first = sorted(path.glob("*-00001-*.arrow" if source == "huggingface" else "part-0.parquet"))[0]
    chunk = "record batch" if source == "huggingface" else "row group"
    content = first.read_bytes()
    first.write_bytes(content[:-20])
    with pytest.raises(DataError, match=f"{first.name}, {chunk} 0: the file has changed while it was read"):
        shorter.read(0, 8)
    first.write_bytes(content.replace(b"waits", b"comes"))
    with pytest.raises(DataError, match=f"{first.name}, .*(holds other tokens than|can't be read)"):
        other.read(0, 400)
    first.unlink()
    with pytest.raises(DataError, match=f"{first.name}, {chunk} 0 can't be read: the file is gone"):
        gone.read(0, 8)


@pytest.mark.parametrize("missing", ["pyarrow", "tokenizers"])
def test_a_missing_package_is_one_sentence(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    path = parquet(tmp_path / "table", TEXTS)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises((ConfigError, DataError), match=rf"needs {missing} in the image: pip install {missing}$"):
        found("parquet", path, tokenizer=str(file))


def test_opening_a_table_leaves_the_environment_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = "JE_ARROW_MALLOC_CONF"
    path = parquet(tmp_path / "table", TEXTS)
    for given in (None, "narenas:1"):
        monkeypatch.delenv(variable, raising=False) if given is None else monkeypatch.setenv(variable, given)
        data.build(config("parquet", path))
        assert os.environ.get(variable) == given


def test_the_documents_of_a_dataset_are_those_that_tokenize_reads(tmp_path: Path, file: Path) -> None:
    path = parquet(tmp_path / "table", TEXTS)
    write(documents(path, "text", None), tmp_path / "tokens.npy", file, None)
    assert np.load(tmp_path / "tokens.npy").tolist() == numbers(counted("parquet", path, tokenizer=str(file)))


@pytest.mark.processes
@pytest.mark.parametrize("source", MAKERS)
def test_a_job_has_the_losses_of_one_over_the_tokens_after_a_kill_and_in_any_world_size(
    ranks: Ranks, tmp_path: Path, source: str
) -> None:
    texts = [f"the number {n} is followed by {n + 1}\n" for n in range(400)]
    tokenizer(tmp_path / "tokenizer.json")
    write(iter(texts), tmp_path / "tokens.npy", tmp_path / "tokenizer.json", None)
    path = MAKERS[source](tmp_path / "table", texts)
    model = {"options": {"layers": 2, "width": 32, "heads": 2, "context": 32, "vocabulary": 300}, "name": "llama"}
    table = {"source": source, "path": str(path), "options": {"tokenizer": str(tmp_path / "tokenizer.json")}}
    tokens = {"source": "tokens", "path": str(tmp_path / "tokens.npy")}

    def job(name: str, given: dict[str, Any]) -> Job:
        return Job(ranks, tmp_path / name, path, model=model, data=given, steps=6)

    whole = job("whole", tokens)
    assert whole.round(1, 1).codes == [0]
    alone = job("alone", table)
    assert alone.round(1, 1).codes == [0]
    assert alone.losses == whole.losses
    assert [*(tmp_path / "alone" / "checkpoints").glob("token-counts-*.npy")]
    broken, socket = job("broken", table), tmp_path / "faults"
    variables = {environment.FAULTS: encode([Fault("kill", step=5, rank=1)]), environment.FAULT_SOCKET: str(socket)}
    with fault_socket(socket):
        assert broken.round(1, 2, variables, agent=True).codes == [ExitCode.PEER_LOST, -9]
        second = broken.round(2, 2, variables, agent=True)
    assert second.codes == [0, 0], second.output
    assert [each["step"] for each in second.said("resumed")] == [3, 3]
    assert broken.losses == pytest.approx(whole.losses, rel=1e-5)  # two ranks add their gradients in another order
    undisturbed = job("undisturbed", tokens)
    assert undisturbed.round(1, 2).codes == [0, 0]
    assert broken.losses == undisturbed.losses
