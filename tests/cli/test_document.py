"""A job's file: read as Kubernetes' tools read it, with the line of each field; what is no YAML is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster_operator.cli.job_files.job_document import load
from trainmaster_operator.cli.refusal import Refusal


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "job.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1E3", 1e3),
        ("-.5", -0.5),
        ("1.", 1.0),
        ("12", 12),
        ("0x10", 16),
        ("'12'", "12"),
        ("2026-11-21", "2026-11-21"),
        ("yes", True),
        ("null", None),
        ("1.2.3", "1.2.3"),
        ("-", None),
    ],
)
def test_scalars_mean_what_they_mean_to_kubernetes(tmp_path: Path, text: str, value: object) -> None:
    read = load(written(tmp_path, f"a: {text}\n" if text != "-" else "a:\n")).value["a"]
    assert read == value
    assert type(read) is type(value)


def test_every_field_and_list_entry_has_its_line(tmp_path: Path) -> None:
    document = load(written(tmp_path, "a:\n  b: 1\n  c:\n    - x\n    - d: 2\n"))
    assert document.line(("a",)) == 1
    assert document.line(("a", "b")) == 2
    assert document.line(("a", "c", 1, "d")) == 5
    assert document.line(("a", "c", 0)) == 4


def test_a_field_that_is_missing_has_the_line_of_what_is_above_it(tmp_path: Path) -> None:
    document = load(written(tmp_path, "a: 1\nb:\n  c: 2\n"))
    assert document.line(("b", "missing", "deeper")) == 2
    assert document.line(("nowhere",)) == 1


def test_what_a_map_has_itself_wins_over_what_is_merged_into_it(tmp_path: Path) -> None:
    document = load(written(tmp_path, "a: &a {x: 1, z: 3}\nb: &b {<<: *a, x: 2}\nc: *b\n"))
    assert document.value["b"] == document.value["c"] == {"x": 2, "z": 3}


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    document = load(written(tmp_path, "a: &a {x: 1}\nb:\n  <<: *a\n  y: 2\nc: *a\n"))
    assert document.value == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": {"x": 1}}


LEVELS = range(1, 12)


def merged() -> str:
    """A map of merge keys, each of which takes the one within it nine times."""
    text = "{a: 1}"
    for n in LEVELS:
        text = f"{{<<: [&m{n} {text}, {', '.join([f'*m{n}'] * 8)}]}}"
    return f"a: {text}\n"


BOMBS = {
    "lists": "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in LEVELS),
    "maps": "".join(f"l{n}: &l{n} {{{', '.join(f'k{i}: *l{n - 1}' for i in range(9))}}}\n" for n in LEVELS),
    "merge keys": merged(),
    "long text": f"long: &long {'x' * 500_000}\nl: [*long, *long, *long]\n",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_aliases_of_aliases_are_refused_before_they_are_written_out(tmp_path: Path, kind: str) -> None:
    with pytest.raises(Refusal) as refused:
        load(written(tmp_path, f"l0: &l0 {{a: 1}}\n{BOMBS[kind]}"))
    (line,) = refused.value.lines
    assert line.endswith("stand for more than 20000 values or 1048576 characters, which is more than a job can have")


def test_a_value_that_is_used_again_and_again_is_no_bomb(tmp_path: Path) -> None:
    uses = "".join(f"u{n}: *a\n" for n in range(1000))
    assert len(load(written(tmp_path, f"a: &a {{x: [1, 2, 3]}}\n{uses}")).value) == 1001


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1\nb: 2\n", "job.yaml:2: isn't YAML: while parsing a flow sequence, expected ',' or ']', but got ':'"),
        ("a:\n\tb: 1\n", "indent with spaces, not with tabs"),
        ("a: 1\n---\nb: 1\n", "job.yaml:2: a second document begins here; one job per file is expected"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "job.yaml:4: b.c is given twice"),
        ("a: &a [*a]\n", "job.yaml:1: an alias that contains itself"),
        ("", "is empty; a job in YAML is expected"),
        ("# nothing\n", "is empty; a job in YAML is expected"),
        (b"\x89PNG\xff", "isn't text in UTF-8"),
        ("a: !!python/object:os.system {}\n", "plain YAML is expected"),
        ("a: !!binary aGVsbG8=\n", "is neither text nor a number"),
        ("[a, b]: 1\n", "a field's name is expected"),
        ("a: \x07\n", "isn't YAML"),
        ("[" * 5000, "is nested too deeply"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_job_is_one_sentence(tmp_path: Path, text: str | bytes, sentence: str) -> None:
    with pytest.raises(Refusal) as refused:
        load(written(tmp_path, text))
    (line,) = refused.value.lines
    assert sentence in line
    assert "\n" not in line


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "missing.yaml", "doesn't exist"), (tmp_path, "is a folder")):
        with pytest.raises(Refusal, match=words):
            load(path)


def test_a_script_in_place_of_a_job_is_refused_with_the_command_that_makes_a_job_of_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    with pytest.raises(Refusal) as refused:
        load(script)
    assert refused.value.lines == (
        f"{script}: is a Python script; a job in YAML is expected; `trainmaster init job.yaml --script {script}` "
        "writes one that runs it",
    )


def test_a_huge_file_is_not_even_parsed(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="a job has at most"):
        load(written(tmp_path, "a: " + "x" * 2**20))
