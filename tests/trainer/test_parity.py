"""The parity table: each row trains as one process does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.trainer import parity_probe
from tests.trainer.ranks import Ranks
from trainmaster.parallel.blocks import compiling
from trainmaster.tools.parity import ROWS, Outcome, compare, main, select

CHOSEN = [
    "P1-replicate gpt dpReplicate=3 accumulation=2",
    "P2-fsdp2 gpt dpShard=2 accumulation=2",
    "P2-hsdp gpt dpReplicate=2 dpShard=2 accumulation=2",
    "P2-zero-1 gpt dpShard=2 accumulation=2",
    "P2-zero-2 gpt dpShard=2 accumulation=2",
    "P2-offload gpt dpShard=2 accumulation=2",
    "P3-layers gpt pp=3 devices=3 accumulation=1",
    "P3-layers gpt pp=2 accumulation=1",
    "P3-replicas gpt dpReplicate=3 devices=3 accumulation=2",
    "P3-replicas moe dpReplicate=2 devices=2 accumulation=1",
    "P4-tensor llama tp=2 accumulation=2",
    "P4-tensor-sequence-vocabulary gpt tp=2 accumulation=2",
    "P5-GPipe gpt pp=2 accumulation=4",
    "P5-1F1B llama pp=2 accumulation=4",
    "P5-Interleaved1F1B gpt pp=2 accumulation=4",
    "P5-InterleavedZeroBubble gpt pp=2 accumulation=4",
    "P5-ZBV gpt pp=2 accumulation=4",
    "P5-DualPipeV gpt pp=2 accumulation=4",
    "P6-AllGather-HeadTail gpt cp=2 accumulation=1",
    "P6-Ulysses llama cp=2 accumulation=2",
    "P7-dense-tensor moe tp=2 accumulation=1",
    "P7-expert moe dpShard=2 ep=2 accumulation=2",
    "P7-expert-shard moe dpShard=4 ep=2 accumulation=1",
    "P7-expert-context moe cp=2 ep=2 accumulation=1",
    "P7-expert-tensor moe dpShard=2 tp=2 ep=2 accumulation=1",
    "P7-expert-pipeline moe pp=2 dpShard=2 ep=2 accumulation=4",
    "P9-profile gpt pp=3 accumulation=3",
    "P8-shard-tensor llama dpShard=2 tp=2 accumulation=1",
    "P8-context-tensor-ulysses gpt cp=2 tp=2 accumulation=1",
    "P8-1F1B-shard gpt pp=2 dpShard=2 accumulation=4",
    "P8-1F1B-context gpt pp=2 cp=2 accumulation=4",
    "P8-ZBV-tensor gpt pp=2 tp=2 accumulation=4",
    "M1-bert-shard bert dpShard=2 accumulation=2",
    "M1-bert-tensor bert tp=2 accumulation=1",
    "M1-bert-1F1B bert pp=2 accumulation=4",
    "M2-cnn-dpReplicate cnn dpReplicate=2 accumulation=2",
    "M2-cnn-dpShard cnn dpShard=2 accumulation=2",
    "E2-bf16-shard gpt dpShard=2 precision=bf16 accumulation=2",
    "E2-fp16-1F1B gpt pp=2 precision=fp16 accumulation=4",
    "E5-recompute-tensor gpt tp=2 recompute=Full accumulation=1",
    "E5-recompute-ZBV gpt pp=2 recompute=Full accumulation=4",
    "E7-replicate gpt dpReplicate=3 method=TopK share=1 accumulation=2",
    "E7-hsdp gpt dpReplicate=2 dpShard=2 method=TopK share=1 accumulation=2",
    "E7-expert moe dpReplicate=2 dpShard=2 ep=2 method=TopK share=1 accumulation=1",
    "E7-fp16 gpt dpReplicate=2 method=fp16 accumulation=1",
    "E7-PowerSGD-1F1B gpt pp=2 dpReplicate=2 method=PowerSGD rank=4 accumulation=4",
    "E7-TopK-tensor gpt dpReplicate=2 tp=2 method=TopK share=0.1 accumulation=1",
    "E8-diloco gpt island=2 every=3 accumulation=2",
    "E8-fragments gpt island=2 every=4 fragments=3 accumulation=1",
    "E8-shard gpt island=2 dpShard=2 every=3 accumulation=1",
    "E8-1F1B gpt island=2 pp=2 every=3 accumulation=4",
    "E8-muon-replicate gpt dpReplicate=2 name=muon lr=0.02 accumulation=2",
    "E8-muon-shard-tensor llama dpShard=2 tp=2 name=muon lr=0.02 accumulation=1",
    "E8-muon-1F1B gpt pp=2 dpShard=2 name=muon lr=0.02 accumulation=4",
    "E8-muon-expert-tensor moe dpShard=4 tp=2 ep=4 name=muon lr=0.02 accumulation=1",
    "E8-muon-cnn cnn dpShard=2 name=muon lr=0.02 accumulation=1",
    "E9-compile-shard llama dpShard=2 compile=True accumulation=1",
]
"""One row of each path; the whole table takes longer than a test may."""


@pytest.mark.processes
@pytest.mark.parametrize("row", CHOSEN)
def test_a_strategy_trains_as_one_process_does(ranks: Ranks, common_folder: Path, row: str) -> None:
    if "compile=True" in row and compiling.lacks("cpu"):
        pytest.skip("this machine has no compiler")
    found = ranks.call(parity_probe.row, row, str(common_folder))
    assert found["passed"], found


@pytest.mark.processes
def test_the_command_writes_the_rows_that_were_asked_for(ranks: Ranks, tmp_path: Path) -> None:
    names = ["M2-cnn-dpShard cnn dpShard=2 accumulation=2", "P1-replicate gpt dpReplicate=2 accumulation=1"]
    file = tmp_path / "table.json"
    only = [word for name in names for word in ("--only", name)]
    done = ranks.call(parity_probe.command, ["--json", str(file), *only])
    assert done["code"] == 0, done["printed"]
    table = json.loads(file.read_text())["rows"]
    assert sorted(row["row"] for row in table) == names
    assert all(row["passed"] for row in table)
    assert all(name in done["printed"] for name in names)
    assert "2 rows on the CPU in " in done["printed"], "the parity table says which device it is of"


def test_rows_have_names_of_their_own() -> None:
    names = [str(row) for row in ROWS]
    assert len(set(names)) == len(names)
    assert set(CHOSEN) <= set(names)


def outcome(losses: list[float], weight: float = 2.0) -> Outcome:
    return Outcome(losses, {"weight": np.array([1.0])}, {"weight": np.array([weight])})


@pytest.mark.parametrize(
    ("found", "passed"),
    [
        (outcome([4.0, 3.0]), True),
        (outcome([4.0, 3.0 * (1 + 5e-7)]), True),
        (outcome([4.0, 3.0 * (1 + 5e-6)]), False),
        (outcome([4.0, float("nan")]), False),
        (outcome([4.0, 3.0], weight=2.0 + 2e-5), True),
        (outcome([4.0, 3.0], weight=2.0 + 2e-4), False),
        (outcome([4.0, 3.0], weight=float("nan")), False),
    ],
)
def test_what_differs_beyond_the_tolerance_fails(found: Outcome, passed: bool) -> None:
    assert compare(ROWS[0], found, outcome([4.0, 3.0])).passed is passed


@pytest.mark.parametrize(
    ("losses", "passed"),
    [
        ([4.0, 3.0], True),
        ([4.0, 3.0 * (1 + 1e-4)], True),
        ([4.0, 3.0 * (1 + 3e-4)], False),  # too far from the exact run
        ([4.0, 3.9998], False),
        ([4.0, float("nan")], False),
    ],
)
def test_a_row_that_is_not_exact_has_a_tolerance_of_its_own(losses: list[float], passed: bool) -> None:
    (row, *_) = select(["E2-fp16"])
    assert compare(row, outcome(losses, weight=5.0), outcome([4.0, 3.0])).passed is passed


def test_a_row_that_is_not_exact_must_converge() -> None:
    """Within its tolerance of the loss at each step, but hardly falling where the exact run falls a little."""
    (row, *_) = select(["E2-bf16"])
    assert not compare(row, outcome([4.0, 3.999]), outcome([4.0, 3.995])).passed
    assert compare(row, outcome([4.0, 3.995]), outcome([4.0, 3.995])).passed


def test_another_start_fails_whatever_the_end() -> None:
    moved = Outcome([4.0], {"weight": np.array([1.5])}, {"weight": np.array([2.0])})
    assert not compare(ROWS[0], moved, outcome([4.0])).passed


def test_rows_are_chosen_by_a_part_of_their_name() -> None:
    assert [row.parallelism for row in select(["P2-hsdp"])] == [{"dpReplicate": 2, "dpShard": 2}] * 2
    assert select([]) == ROWS


def test_a_pattern_without_a_row_is_refused_with_a_few_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "nonsense"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(
        f"trainmaster: --only nonsense: no row has a name that contains this (there are {len(ROWS)} rows); examples of "
    )
    assert " P1-replicate, P2-fsdp2, " in err
    assert err.endswith("; --list lists all\n")
    assert len(err) < 500


def test_rows_are_listed_without_training_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "P2-hsdp"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("P2-hsdp gpt dpReplicate=2 dpShard=2 accumulation=1 ")
    assert second.endswith("shards summed over replicas after the last micro-batch alone")
