"""What the time of a step is reckoned with: this machine as measured, or another one as described."""

from __future__ import annotations

import io
import json
import math
import pwd
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.test_planner import config
from trainmaster import models, parallel
from trainmaster.contract.config import TrainingConfig
from trainmaster.host import memory_reserve
from trainmaster.tools.planner import calibration, command, layout_table
from trainmaster.tools.planner.calibration import _Count
from trainmaster.tools.planner.estimate import CALLS_OF_OPTIMIZER, Estimate, estimate
from trainmaster.tools.planner.layouts import Layout
from trainmaster.tools.planner.machine import Figures, Machine, assumed, shared
from trainmaster.tools.planner.survey import Survey

LAPTOP = Figures(flops=5e10, bandwidth=1e9, operation_s=1e-5, collective_s=2e-4)


def planned(machine: Machine, ranks: int = 1, parallelism: dict[str, Any] | None = None, **job: Any) -> Estimate:
    asked = config(parallelism=parallelism, **job)
    return estimate(Layout(asked, ranks), Survey(asked.model), machine)


def test_ranks_share_the_cores_of_this_machine() -> None:
    alone, four = shared(LAPTOP, 2, 1, None), shared(LAPTOP, 2, 4, None)
    assert (alone.flops, alone.operation_s) == (1e11, 1e-5)
    assert (four.flops, four.bandwidth) == (2.5e10, 5e8)
    assert (four.operation_s, four.collective_s) == (2e-5, 4e-4)
    assert four.basis.startswith("this machine as measured, its 2 CPU cores shared by 4 ranks: 20 us an operation")
    assert "20 us an operation, 400 us a collective" in four.basis
    assert "160 us an operation, 3.2 ms a collective" in shared(LAPTOP, 2, 32, None).basis


def test_what_is_given_is_told_apart_from_what_is_assumed() -> None:
    machine = assumed(300.0, None, None)
    assert (machine.flops, machine.bandwidth) == (3e14, 25e9)
    assert "--tflops as given, --bandwidth assumed" in machine.basis
    assert (machine.between_nodes, machine.ranks_per_node) == (25e9, 0)


def test_links_between_nodes_are_told_with_the_ranks_of_a_node() -> None:
    machine = assumed(400.0, 200.0, None, between_nodes=12.5, ranks_per_node=8)
    assert (machine.bandwidth, machine.between_nodes, machine.ranks_per_node) == (200e9, 12.5e9, 8)
    assert "--between-nodes as given, 8 ranks on each node (ranksPerPod)" in machine.basis
    heading = layout_table.heading("llama", 10, 16, machine)
    assert "memory:" not in heading
    assert "then sends at 200 GB/s (12.5 GB/s to other nodes), by the figures of\na rank with a device" in heading


def test_operations_are_counted_as_a_rank_runs_them() -> None:
    job = config(batch=1)
    model = models.build(job.model, job.seed)
    tokens = torch.zeros(1, models.facts(job.model).context, dtype=torch.int64)
    counted = _Count()
    with counted:
        parallel.cross_entropy(model(tokens), tokens, None).backward()
    tensors = len([*model.parameters()])
    per_operation = estimate(Layout(job, 1), Survey(job.model), Machine(1e30, 1e30, None, operation_s=1.0))
    assert per_operation.seconds - CALLS_OF_OPTIMIZER * tensors == pytest.approx(counted.operations, rel=0.25)


def test_a_small_model_is_as_slow_as_its_operations_are() -> None:
    """By the floating-point operations of a GPU alone this one would train on tens of millions of tokens a second."""
    by_flops = planned(Machine(100e12, 25e9, None), batch=1)
    found = planned(shared(LAPTOP, 1, 1, None), batch=1)
    assert by_flops.tokens / by_flops.seconds > 10_000_000
    assert found.tokens / found.seconds < 20_000


def test_operations_that_are_queued_for_a_device_take_no_time_beside_what_they_compute() -> None:
    slow = Machine(1e6, 1e30, None, operation_s=1e-6, queues=True)
    assert planned(slow).seconds == planned(Machine(1e6, 1e30, None)).seconds


@pytest.mark.parametrize(
    ("parallelism", "ranks", "collectives"),
    [
        ({}, 1, 0),
        ({"dpReplicate": 4}, 4, 1 + 1),  # one bucket
        ({"dpShard": 4, "sharding": {"stage": 3}}, 4, 1 + 4 * 3 + 2),  # blocks twice gathered, the rest once
        ({"pp": 2}, 2, 1 + 2 * 2),  # two micro-batches, there and back
    ],
)
def test_each_collective_takes_its_time(parallelism: dict[str, Any], ranks: int, collectives: int) -> None:
    micro = 8 if "pp" in parallelism else None
    found = planned(Machine(1e30, 1e30, None, collective_s=1.0), ranks, parallelism, micro=micro)
    assert found.seconds == pytest.approx(collectives)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The measurements that were made, by precision."""
    made: list[str] = []

    def run(_: Any, job: Any, work: Any) -> list[list[Figures]]:
        made.append(job.precision)
        return [[LAPTOP, LAPTOP], []]

    monkeypatch.setattr(calibration, "run", run)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made


def test_a_machine_is_measured_once_for_each_precision(measured: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for precision in ("fp32", "fp32", "bf16", "bf16"):
        assert calibration.figures(config(precision=precision)) == (LAPTOP, "")
    assert measured == ["fp32", "bf16"]
    monkeypatch.setattr(calibration.platform, "node", lambda: "another machine")
    calibration.figures(config())
    assert measured == ["fp32", "bf16", "fp32"]


def test_a_user_without_a_home_has_the_machine_measured_each_time(
    measured: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert calibration.figures(config()) == (LAPTOP, "")
    assert measured == ["fp32", "fp32"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"flops": "many"}',
        '{"flops": 0, "bandwidth": 1, "operation_s": 1}',
        '{"flops": 1e7, "bandwidth": 1e9, "operation_s": 1e-5, "collective_s": 1e-4}',
    ],
)
def test_figures_that_cannot_be_right_are_measured_again(measured: list[str], tmp_path: Path, text: str) -> None:
    calibration.figures(config())
    (file,) = (tmp_path / "cache" / "trainmaster").iterdir()
    file.write_text(text)
    assert calibration.figures(config()) == (LAPTOP, "")
    assert measured == ["fp32", "fp32"]
    assert calibration.figures(config()) == (LAPTOP, "")
    assert len(measured) == 2


BUSY = Figures(flops=1e10, bandwidth=1e8, operation_s=9e-5, collective_s=9e-3)


def test_the_best_of_all_rounds_counts_for_each_figure() -> None:
    one, other = replace(BUSY, flops=5e10, bandwidth=1e9), replace(BUSY, operation_s=1e-5, collective_s=2e-4)
    assert calibration.best_of([one, BUSY, other]) == LAPTOP


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ([LAPTOP, LAPTOP, BUSY, BUSY, BUSY], ""),  # the two fastest agree
        ([LAPTOP, replace(LAPTOP, collective_s=9e-3, bandwidth=1e7)], ""),  # as on a quiet machine
        (
            [replace(BUSY, operation_s=1e-5), LAPTOP, BUSY],
            "a product of matrices took 5 times as long in the second fastest round as in the fastest one",
        ),
        (
            [replace(BUSY, flops=5e10), LAPTOP, BUSY],
            "a small operation took 9 times as long in the second fastest round as in the fastest one",
        ),
        ([replace(LAPTOP, flops=9.4e7)] * 3, "0.094 GFLOP/s is too slow for a core of a CPU"),
    ],
)
def test_rounds_that_disagree_or_cannot_be_right_are_doubtful(rounds: list[Figures], words: str) -> None:
    assert calibration.doubts(rounds) == words


def test_a_doubtful_measurement_is_used_and_not_kept(
    measured: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(calibration, "run", lambda *_, **__: [[LAPTOP, BUSY], []])
    found, doubt = calibration.figures(config())
    assert found == LAPTOP
    assert "a product of matrices took 5 times as long" in doubt
    assert not (tmp_path / "cache").exists()


def test_a_doubtful_measurement_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = config()
    monkeypatch.setattr(sys, "stdin", io.StringIO(job.model_dump_json()))
    monkeypatch.setattr(command, "figures", lambda _: (LAPTOP, "it was slow"))
    assert command.main(["--ranks", "1", "--top", "1"]) == 0
    out, err = capsys.readouterr()
    assert "1 layout is legal." in out
    assert err.startswith("trainmaster: this machine's speed is doubtful: it was slow. Other programs probably use")
    assert "run the command again when the machine is quiet" in err
    assert "--tflops and --bandwidth" in err


@pytest.mark.parametrize(("flops", "is_told"), [(1.0, True), (5e10, False)])
def test_steps_of_hours_on_this_cpu_are_told_to_be_no_guide_to_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flops: float, is_told: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(config().model_dump_json()))
    monkeypatch.setattr(command, "figures", lambda _: (replace(LAPTOP, flops=flops), ""))
    assert command.main(["--ranks", "1", "--top", "1"]) == 0
    assert ("a step would take more than an hour" in capsys.readouterr().out) is is_told


def test_layouts_may_use_the_part_of_a_devices_memory_that_automicro_uses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peak = planned(Machine(1e12, 1e9, None), batch=1).memory.peak
    least = math.ceil(peak / memory_reserve.USABLE) + memory_reserve.CONTEXT
    for memory, fits in ((least - 2, False), (least + 2, True)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(config(batch=1).model_dump_json()))
        assert command.main(["--ranks", "1", "--top", "1", "--tflops", "1", "--memory", str(memory)]) == 0
        out = capsys.readouterr().out
        assert "of the 1.0G of a rank; the rest is a reserve." in out
        assert ("too large" not in out) is fits


@pytest.mark.parametrize(
    ("limit", "copies", "said"),
    [
        (
            8 << 30,
            True,
            "need 310Gi in each pod (8 ranks, and copies for another pod),\nbut spec.checkpoint.ram.limit is 8Gi; "
            "set spec.checkpoint.ram: {limit: 310Gi}.",
        ),
        (
            8 << 30,
            False,
            "need 155Gi in each pod (8 ranks),\nbut spec.checkpoint.ram.limit is 8Gi; "
            "set spec.checkpoint.ram: {limit: 155Gi}.",
        ),
        (
            310 << 30,
            True,
            "need 310Gi in each pod (8 ranks, and copies for another pod);\n"
            "spec.checkpoint.ram.limit, 310Gi, is enough.",
        ),
    ],
)
def test_a_pod_needs_memory_for_two_files_of_each_rank_and_as_much_for_copies(
    limit: int, copies: bool, said: str
) -> None:
    saved = (75 << 30) // 8
    assert command.memory_need(saved, 8, limit, copies=copies) == f"Checkpoints in memory {said}\n"


def test_a_plan_says_whether_the_jobs_pods_have_enough_memory_for_checkpoints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    for peers, copies in ((1, 4), (0, 2)):  # files of a rank in each pod, its own and its peer's
        monkeypatch.setattr(sys, "stdin", io.StringIO(config().model_dump_json()))
        pod = ["--ram-limit", str(2**20), "--ram-peers", str(peers)]
        assert command.main(["--ranks", "2", "--top", "1", "--tflops", "1", "--json", str(file), *pod]) == 0
        saved = json.loads(file.read_text())["layouts"][0]["saved"]
        needed = math.ceil(copies * (saved + 2**20) * 32 / 31 / 2**20)
        assert f"Checkpoints in memory need {needed}Mi in each pod (1 rank" in capsys.readouterr().out


def test_a_plan_says_how_large_checkpoints_are_on_storage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(config().model_dump_json()))
    assert command.main(["--ranks", "2", "--top", "1", "--tflops", "1", "--keep", "3"]) == 0
    printed = capsys.readouterr().out
    parameters = int(re.search(r"([\d,]+) parameters", printed)[1].replace(",", ""))  # type: ignore[index]
    each = re.search(r"On storage a checkpoint has (\d+)Mi\.\n.+ written, need (\d+)Mi of the volume", printed)
    assert each is not None
    assert int(each[1]) == math.ceil(12 * parameters / 2**20)  # fp32, and two moments of AdamW
    assert 4 * (int(each[1]) - 1) < int(each[2]) <= 4 * int(each[1])


def test_a_plan_counts_on_storage_what_compressed_gradients_keep_of_each_replica(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = config().model_dump()
    document["communication"] = {"compression": {"method": "TopK"}}
    document["parallelism"] = {"dpReplicate": 2}
    monkeypatch.setattr(sys, "stdin", io.StringIO(TrainingConfig.model_validate(document).model_dump_json()))
    assert command.main(["--ranks", "2", "--top", "1", "--tflops", "1", "--keep", "3"]) == 0
    printed = capsys.readouterr().out
    parameters = int(re.search(r"([\d,]+) parameters", printed)[1].replace(",", ""))  # type: ignore[index]
    each = re.search(r"On storage a checkpoint has (\d+)Mi\.", printed)
    assert each is not None
    assert int(each[1]) == math.ceil((12 + 2 * 4) * parameters / 2**20)


def test_a_plan_of_all_kinds_of_recomputation_names_the_kind_of_each_layout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(config().model_dump_json()))
    assert command.main(["--ranks", "1", "--top", "9", "--tflops", "1", "--recompute", "all"]) == 0
    printed = capsys.readouterr().out
    assert sorted(re.findall(r"^one rank, (\w+) ", printed, re.MULTILINE)) == ["Full", "None", "Selective"]
    assert re.search(r"^  recompute: (None|Selective|Full)$", printed, re.MULTILINE)


def test_layouts_that_fit_are_counted_among_all_that_are_legal() -> None:
    small, large = planned(Machine(1e12, 1e9, None)), planned(Machine(1e12, 1e9, 1))
    assert layout_table.counted([small, small], 2) == "2 layouts are legal."
    assert layout_table.counted([small, large], 1) == (
        "2 layouts are legal; 1 of these 2 fits into the memory of a rank, 1 needs more.\n"
        "The table shows the best 1; --top N changes that."
    )
    assert layout_table.counted([small, small, large, large], 4) == (
        "4 layouts are legal; 2 of these 4 fit into the memory of a rank, 2 need more."
    )
    assert layout_table.counted([large], 1) == "1 layout is legal."  # the next line says that none fits


def test_without_a_place_for_the_figures_they_are_measured_each_time(measured: list[str], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    for _ in range(2):
        assert calibration.figures(config()) == (LAPTOP, "")
    assert measured == ["fp32", "fp32"]


@pytest.mark.parametrize(
    ("precision", "recompute", "words"),
    [
        ("fp32", "None", "more ranks, a smaller model or context, recompute Full or precision bf16"),
        ("bf16", "None", "more ranks, a smaller model or context or recompute Full"),
        ("bf16", "Full", "more ranks or a smaller model or context"),
    ],
)
def test_a_job_is_advised_nothing_that_it_does_already(precision: str, recompute: str, words: str) -> None:
    assert layout_table.ways_out(config(precision=precision).model_copy(update={"recompute": recompute})) == words


@pytest.mark.parametrize("seconds", [1e-9, 9.9999e-7, 0.00123456, 0.99999, 9999.49, 12345.6, 99_999.6, 1e7, 1e10, 1e15])
def test_no_time_of_a_step_is_wider_than_its_column(seconds: float) -> None:
    assert len(layout_table.duration(seconds)) <= 8


def test_columns_stand_below_each_other_however_many_micro_batches_there_are() -> None:
    small = planned(Machine(1e12, 1e9, None), batch=4)
    many = planned(Machine(1e12, 1e9, None), batch=123_456, micro=1)
    names, *rows = layout_table.rows([small, many])
    assert "1 x 123456" in rows[1]
    assert {len(row) for row in (names, *rows)} == {len(names)}
