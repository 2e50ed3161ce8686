"""Texts as token files: by the command, read again by the source, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainmaster import data
from trainmaster.contract.config import TrainingConfig
from trainmaster.errors import ConfigError, DataError
from trainmaster.tools.tokenizing.documents import documents
from trainmaster.tools.tokenizing.writing import write
from trainmaster_operator.cli.main import main

TEXTS = [f"the rank {i} waits for the rank {i + 1}; all reduce, é\n" * 3 for i in range(40)]
END = "<|endoftext|>"


def tokenizer(path: Path, special: tuple[str, ...] = (END,), words: int = 300) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=words, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    made.save(str(path))
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tokenizer(tmp_path / "tokenizer.json")
    return tmp_path / "tokenizer.json"


def text_files(folder: Path) -> None:
    for index, text in enumerate(TEXTS):
        (folder / f"{index:02d}.txt").write_text(text)


def parquet(folder: Path) -> None:
    for index in range(2):
        table = pyarrow.table({"id": list(range(20)), "text": TEXTS[20 * index : 20 * index + 20]})
        pyarrow.parquet.write_table(table, folder / f"part-{index}.parquet", row_group_size=7)
    (folder / "README.md").write_text("not a document: there are tables")


def arrow(folder: Path) -> None:
    """As `datasets.Dataset.save_to_disk` lays it out."""
    table = pyarrow.table({"text": TEXTS})
    with pyarrow.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as stream:
        stream.write_table(table, max_chunksize=9)
    (folder / "state.json").write_text("{}")


def lines_of_json(folder: Path) -> None:
    (folder / "all.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))


@pytest.mark.parametrize("make", [text_files, parquet, arrow, lines_of_json])
def test_a_job_reads_the_documents_of_each_kind_of_file(tmp_path: Path, file: Path, make: Any) -> None:
    (tmp_path / "source").mkdir()
    make(tmp_path / "source")
    about = write(documents(tmp_path / "source", "text", None), tmp_path / "out.npy", file, None)
    assert about["documents"] == len(TEXTS)
    known = Tokenizer.from_file(str(file))
    numbers = np.load(tmp_path / "out.npy")
    assert numbers.dtype == np.uint16
    assert len(numbers) == about["tokens"]
    ends = np.flatnonzero(numbers == known.token_to_id(END))
    assert [known.decode(part[:-1]) for part in np.split(numbers, ends + 1)[:-1]] == TEXTS
    source = data.build(config(tmp_path / "out.npy", about["vocabulary"]))
    assert source.tokens == about["tokens"] - 1
    assert source.batch(0, range(2)).valid_tokens == 16


def config(path: Path, vocabulary: int) -> TrainingConfig:
    options = {"context": 8, "width": 8, "heads": 2, "vocabulary": vocabulary}
    return TrainingConfig.model_validate(
        {
            "model": {"name": "llama", "options": options},
            "data": {"source": "tokens", "path": str(path)},
            "steps": 10,
            "batch": {"global": 4},
        }
    )


def test_a_model_that_knows_less_than_the_tokenizer_is_refused(tmp_path: Path, file: Path) -> None:
    write(["a"] * 50, tmp_path / "out.npy", file, None)  # whatever tokens there are
    with pytest.raises(DataError, match="was made with a tokenizer of 300 tokens, but the model knows 299"):
        data.build(config(tmp_path / "out.npy", 299))


def test_many_tokens_need_larger_numbers(tmp_path: Path) -> None:
    words = {f"w{i}": i for i in range(70_000)} | {END: 70_000}
    made = Tokenizer(models.WordLevel(words, unk_token=END))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    write(["w1 w69999"], tmp_path / "out.npy", tmp_path / "tokenizer.json", None)
    assert np.load(tmp_path / "out.npy").tolist() == [1, 69_999, 70_000]
    assert np.load(tmp_path / "out.npy").dtype == np.uint32


def broken(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def test_what_holds_no_documents_is_refused_in_words(tmp_path: Path) -> None:
    parquet(tmp_path)
    (tmp_path / "empty").mkdir()
    cases = [
        (tmp_path / "none", "text", "doesn't exist"),
        (tmp_path / "empty", "text", "holds no text file, and no .parquet, .arrow or .jsonl one"),
        (tmp_path / "part-0.parquet", "words", "has no column 'words', only id, text; --column names another one"),
        (tmp_path / "part-0.parquet", "id", "column 'id' holds 0, which is no text"),
        (broken(tmp_path, "broken.parquet", b"PAR1 not so"), "text", "can't be read as Parquet"),
        (broken(tmp_path, "broken.arrow", b"neither"), "text", "can't be read as Arrow"),
        (broken(tmp_path, "broken.jsonl", b'{"text": "a"}\n{'), "text", "line 2 is no JSON"),
        (broken(tmp_path, "other.jsonl", b'{"texts": "a"}'), "text", "line 1 has no field 'text'"),
        (broken(tmp_path, "latin.jsonl", b'{"text": "a"}\n{"text": "\xe9"}\n'), "text", "line 2 is no JSON"),
        (broken(tmp_path, "latin.txt", b"caf\xe9 "), "text", "is no UTF-8 text: .* at byte 3"),
    ]
    for source, column, words in cases:
        with pytest.raises(DataError, match=words):
            list(documents(source, column, None))


def test_a_tokenizer_that_is_none_or_ends_no_document_is_refused(tmp_path: Path, file: Path) -> None:
    tokenizer(tmp_path / "bare.json", special=("[END]",))
    out = tmp_path / "out.npy"
    for path, separator, words in (
        (tmp_path / "gone.json", None, "can't be read: No such file"),
        (broken(tmp_path, "odd.json", b"{}"), None, "is no tokenizer.json"),
        (tmp_path / "bare.json", None, "has no token <.endoftext.>, </s>, .*--separator names"),
        (file, "[END]", r"has no token '\[END\]'"),
    ):
        with pytest.raises(ConfigError, match=words):
            write(TEXTS, out, path, separator)
    assert write(TEXTS, out, tmp_path / "bare.json", "[END]")["separator"] == {"token": "[END]", "number": 0}


def test_whatever_goes_wrong_leaves_nothing(tmp_path: Path, file: Path) -> None:
    def fails() -> Any:
        yield "a text"
        raise DataError("the second one is broken")

    before = sorted(tmp_path.iterdir())
    for source, words in ((fails(), "the second one"), ([], "there are no documents")):
        with pytest.raises(DataError, match=words):
            write(source, tmp_path / "out.npy", file, None)
    assert sorted(tmp_path.iterdir()) == before
    write(["a"], tmp_path / "out.npy", file, None)
    with pytest.raises(ConfigError, match=r"out\.npy is there already"):
        write(["a"], tmp_path / "out.npy", file, None)


@pytest.mark.processes
def test_the_command_says_what_to_write_into_a_job(
    tmp_path: Path, file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").mkdir()
    text_files(tmp_path / "texts")
    out = tmp_path / "out.npy"
    assert main(["tokenize", str(tmp_path / "texts"), str(out), "--tokenizer", str(file), "--glob", "0*.txt"]) == 0
    said = capfd.readouterr().out
    assert "tokens of 10 documents, each ended by <|endoftext|>" in said
    assert f"data: {{source: tokens, path: {out}}}" in said
    assert main(["tokenize", str(tmp_path / "gone"), str(tmp_path / "b.npy"), "--tokenizer", str(file)]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == f"trainmaster: {tmp_path / 'gone'} doesn't exist; a file or a folder of texts is expected\n"


def test_the_ends_of_lines_are_part_of_a_document(tmp_path: Path) -> None:
    path = tmp_path / "dos.txt"
    path.write_bytes(b"one\r\ntwo\rthree\n")
    assert [*documents(path, "text", None)] == ["one\r\ntwo\rthree\n"]
