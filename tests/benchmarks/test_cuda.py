"""The programme of the first half hour on a GPU, at toy size on the CPU: that each command still runs, not what comes
of it on a device."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cuda import checkpoints, parity, profile, programme, runs, speed, surroundings, works
from benchmarks.cuda.child import WorkFailed
from benchmarks.cuda.programme import NotHere, Numbers, Part, Row, Setting
from tests.benchmarks import cuda_probe
from tests.trainer.ranks import Ranks
from trainmaster.contract.config import TrainingConfig
from trainmaster.contract.wire import environment
from trainmaster.models import allowed_parallelism
from trainmaster.tools.parity import Outcome, compare
from trainmaster.tools.parity import Row as ParityRow

ON_CPU = "cpu, toy size"
ROOT = Path(__file__).parents[2]
LIMIT_S = 1200  # ends a command that hangs


@pytest.mark.processes
def test_a_rank_in_each_precision_is_held_against_the_cpu(ranks: Ranks, tmp_path: Path) -> None:
    rows = [f"{precision}, recompute None, eager" for precision in works.PRECISIONS]
    rows += ["bf16, recompute Reversible, eager"]
    found = ranks.call(cuda_probe.run, ["works", "--rows", *rows], str(tmp_path))
    assert found["code"] == 0, found["printed"]
    assert ON_CPU in found["printed"]
    assert [*found["rows"]] == rows
    for row in found["rows"].values():
        assert len(row["losses"]) == len(row["expected"]) == works.STEPS
        assert row["difference"] <= row["tolerance"]
        assert row["machine"]["torch"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("command", "row"), [("works", "fp32, recompute Selective, compiled"), ("speed", "1.2B, V 32k, fp8, compiled")]
)
def test_a_compiled_row_is_measured(command: str, row: str, compiling_ranks: Ranks, tmp_path: Path) -> None:
    found = compiling_ranks.call(cuda_probe.run, [command, "--rows", row], str(tmp_path))
    assert found["code"] == 0, found["printed"]
    assert [*found["rows"]] == [row]
    assert found["rows"][row]["losses"]


@pytest.mark.processes
def test_the_command_itself_trains_writes_its_table_and_ends(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.cuda", "works", "--rows", "fp32, recompute None, eager"]
    ended = subprocess.run([*words, "--out", tmp_path], capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ON_CPU in ended.stdout
    (row,) = map(json.loads, (tmp_path / "works.jsonl").read_text().splitlines())
    assert row["row"] == "fp32, recompute None, eager"


@pytest.mark.processes
def test_ours_and_a_loop_by_hand_train_the_same_and_take_turns(ranks: Ranks, tmp_path: Path) -> None:
    found = ranks.call(cuda_probe.run, ["speed", "--rows", "32k, eager"], str(tmp_path))
    assert found["code"] == 0, found["printed"]
    (row,) = found["rows"].values()
    assert [len(row["seconds"][name]) for name in (speed.OURS, speed.BY_HAND)] == [2, 2]
    assert row["losses"][speed.OURS] == pytest.approx(row["losses"][speed.BY_HAND], rel=row["alike"])
    assert row["mfu"] == {speed.OURS: None, speed.BY_HAND: None}
    assert "unknown device" in found["printed"]


@pytest.mark.processes
def test_a_step_of_each_side_is_recorded(ranks: Ranks, tmp_path: Path) -> None:
    found = ranks.call(cuda_probe.run, ["profile", "--rows", "eager"], str(tmp_path))
    assert found["code"] == 0, found["printed"]
    (row,) = found["rows"].values()
    assert [*row["sides"]] == [speed.OURS, speed.BY_HAND]
    for side in row["sides"].values():
        assert side["kernels_ms"] > 0
        assert any("scaled_dot_product" in name for name, _, _ in side["kernels"])
    assert len([*(tmp_path / "profile" / "traces").rglob("*.json")]) == 2


def test_every_row_of_speed_with_the_smaller_vocabulary_is_recorded_too(tmp_path: Path) -> None:
    setting = programme.Setting(tmp_path, None)
    recorded = [row.name for row in profile.rows(setting)]
    assert recorded == [row.name for row in speed.rows(setting) if profile.VOCABULARY in row.name]
    assert "1.2B, V 32k, fp8, compiled" in recorded


def test_gaps_between_kernels_and_kernels_at_the_same_time_are_told_apart() -> None:
    def kernel(name: str, stream: int, begins_us: float, lasts_us: float) -> dict[str, Any]:
        return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": begins_us, "dur": lasts_us}

    host = {**kernel("aten::mm", 9, 0, 500), "cat": "cpu_op"}
    kernels = [kernel("mm", 7, 0, 100), kernel("mm", 7, 101, 99), kernel("copy", 8, 150, 100), kernel("mm", 7, 300, 50)]
    told = profile.summary([host, *kernels], 400e-6)
    assert told["kernels"] == [["mm", 3, pytest.approx(0.249)], ["copy", 1, pytest.approx(0.1)]]
    assert told["kernels_ms"] == pytest.approx(0.349)
    assert told["idle_ms"] == pytest.approx(0.101)
    assert (told["long_gaps"], told["long_gaps_ms"]) == (1, pytest.approx(0.05))


@pytest.mark.processes
@pytest.mark.parametrize("tier", [*checkpoints.TIERS])
def test_a_second_rank_goes_on_where_the_first_one_has_saved(tier: str, ranks: Ranks, tmp_path: Path) -> None:
    found = ranks.call(cuda_probe.run, ["checkpoints", "--rows", f"0.3B, {tier}"], str(tmp_path))
    assert found["code"] == 0, found["printed"]
    assert f"the second rank began behind step 12, from {checkpoints.TIERS[tier]}" in found["printed"]
    (row,) = found["rows"].values()
    assert min(row["copy_gb_s"], row["write_gb_s"], row["load_s"], row["calm_step_s"]) > 0
    assert {*row["build_s"]} == {"build: model", "build: parallelism", "build: optimizer"}
    assert not [*(tmp_path / "checkpoints" / "storage").iterdir()]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("row", "said"),
    [("a Llama of 0.3B, killed", "fork"), ("a small Llama, proven", "Proven: "), ("a DDP script, killed", "fork")],
)
def test_a_run_of_the_command_comes_back(
    row: str, said: str, machine_zygote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.ZYGOTE, str(machine_zygote))
    assert programme.run(runs.PART, Setting(tmp_path / "runs", None), 1200.0, [row]) == {row: programme.GOOD}
    (found,) = map(json.loads, (tmp_path / "runs.jsonl").read_text().splitlines())
    assert said in found["words"]


def test_a_run_without_a_recovery_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "status.yaml").write_text("status: {phase: Succeeded}")
    with pytest.raises(WorkFailed, match=r"0 recoveries are in .*, where one is expected"):
        runs.recovery(tmp_path)


def test_a_script_whose_package_is_missing_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(NotHere, match="this Python has no surely_missing"):
        runs.check_packages(("json", "surely_missing"))


@pytest.mark.processes
def test_two_ranks_are_held_against_one_process(ranks: Ranks, tmp_path: Path) -> None:
    rows = ["P1-replicate gpt dpReplicate=2 accumulation=2", "P2-fsdp2 llama"]
    found = ranks.call(cuda_probe.run, ["parity", "--rows", *rows], str(tmp_path))
    assert found["code"] == 0, found["printed"]
    assert len(found["rows"]) == 2
    for row in found["rows"].values():
        assert row["loss"] <= row["tolerance"] == 1e-6


@pytest.mark.parametrize(
    ("loss", "weight", "alike", "on_a_device"),
    [(1.0, 1.0, True, True), (1.0 + 5e-6, 1.0, False, True), (1.0, 1.0002, False, True), (1.0001, 1.0, False, False)],
)
def test_a_device_may_sum_in_another_order_and_no_more(
    loss: float, weight: float, alike: bool, on_a_device: bool
) -> None:
    row, before = ParityRow("P1", {"dpReplicate": 2}), {"weight": np.zeros(1)}
    expected = Outcome([1.0], before, {"weight": np.ones(1)})
    found = Outcome([loss], before, {"weight": np.full(1, weight)})
    assert compare(row, found, expected).passed is alike
    assert compare(row, found, expected, parity.LENIENCE).passed is on_a_device


def test_rows_that_one_device_can_not_have_are_left_out(tmp_path: Path) -> None:
    names = " ".join(row.name for row in parity.rows(Setting(tmp_path, {"name": "some GPU"})))
    assert "dpShard=2" in names
    assert "tp=2" in names
    assert "pp=2" not in names
    assert "devices=" not in names


def test_where_two_checkpoints_do_not_fit_a_sentence_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotHere, match=r" GB left, and two checkpoints need 2200000000\.0 GB"):
        checkpoints.check_room(tmp_path, 10**18)


def test_checkpoints_of_a_command_that_was_killed_are_removed(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    names = {f"{checkpoints.PREFIX}{pid}-x" for pid in (ended.stdout.strip(), os.getpid())} | {"somebody's"}
    for name in names:
        (tmp_path / name).mkdir()
    checkpoints.remove_left_behind(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{checkpoints.PREFIX}{os.getpid()}-x", "somebody's"}


@pytest.mark.parametrize("vocabulary", [*speed.REAL])
def test_the_models_whose_speed_is_measured_have_1_2_billion_parameters(vocabulary: str) -> None:
    found = speed.work_of(speed.REAL[vocabulary])
    assert found["parameters"] == pytest.approx(1.2e9, rel=0.03)
    assert found["token_flops"] > 6 * (found["parameters"] - speed.REAL[vocabulary]["vocabulary"] * 2048)


def test_the_speed_of_each_side_is_a_part_of_what_its_precision_allows() -> None:
    blocks, seconds = speed.Blocks(2, 3), {speed.OURS: [1.0, 1.0], speed.BY_HAND: [2.0, 2.0]}
    found = {"seconds": seconds, "losses": {speed.OURS: 2.0, speed.BY_HAND: 2.001}}
    work = {"token_flops": 989.5e12 / 256}  # a timed step has 4 x 32 tokens, and a block two
    case = speed.CASES[1]
    derived = speed.derived(work, found, case, blocks, 32, {"name": "NVIDIA H100 80GB HBM3"})
    assert derived["median"] == {speed.OURS: 256.0, speed.BY_HAND: 128.0}
    assert derived["ratio"] == 2.0
    assert derived["mfu"] == {speed.OURS: 0.5, speed.BY_HAND: 0.5}
    shown = speed.cells({**derived, "peak_bytes": {speed.OURS: 3 * 2**30, speed.BY_HAND: 2**29}})
    assert shown == ("256", "128", "2.000", "50.0%", "50.0%", "3.0", "0.5")
    assert derived["passed"]
    found["losses"][speed.OURS] = 2.1
    assert not speed.derived(work, found, case, blocks, 32, None)["passed"]


@pytest.mark.parametrize(("capability", "refused"), [("8.0", True), ("8.9", False), ("9.0", False), ("10.0", False)])
def test_fp8_is_of_devices_that_have_it(capability: str, refused: bool) -> None:
    assert bool(speed.fp8_refusal({"capability": capability})) is refused


@pytest.mark.processes
def test_a_killed_rank_comes_back_from_the_zygote(
    machine_zygote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.ZYGOTE, str(machine_zygote))
    found = works.killed_rank(Setting(tmp_path, None), 120.0)
    assert len(found["samples"]) == 1
    assert found["said"].startswith("median seconds: detect ")


def test_tests_for_a_device_are_left_out_without_one(tmp_path: Path) -> None:
    with pytest.raises(NotHere, match="need a CUDA device"):
        works.marked_tests(Setting(tmp_path, None), 1.0)


@pytest.mark.processes
def test_tests_for_a_device_are_found_and_pass_only_if_some_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def ended(words: str) -> Numbers:
        def run(command: list[str], variables: dict[str, str], log: Path, limit_s: float) -> int:
            asked.append(command)
            log.write_text(f"{words}\n")
            return 0

        monkeypatch.setattr(works.commands, "run", run)
        return works.marked_tests(Setting(tmp_path, {"name": "some GPU"}), 1.0)

    assert ended("5 passed, 27 deselected in 9.87s")["passed"]
    assert not ended("32 deselected in 0.12s")["passed"]
    listed = subprocess.run([*asked[0], "--collect-only"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    names = re.findall(r"^tests/trainer/(\w+)\.py::(\w+)", listed, re.MULTILINE)
    assert {*names} == {
        ("test_save_copies", "test_a_gpu_trains_on_while_its_state_is_saved"),
        ("test_transfer", "test_a_gpu_waits_for_nobody"),
        ("test_devices", "test_a_cpu_and_a_gpu_train_as_the_cpu_alone_does"),
    }, listed


def test_a_row_that_compiled_nothing_has_failed_however_right_its_losses_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained = {"losses": [3.0, 2.0], "seconds": [1.0, 1.0], "peak_bytes": 0}
    setting = Setting(tmp_path, None)
    monkeypatch.setattr(speed.compiling, "lacks", lambda device: "")

    def measured(graphs: int) -> Numbers:
        monkeypatch.setattr(works.child, "run", lambda *_: {**trained, "graphs": graphs})
        return works.compared(setting, works.References(setting), "fp8", "Full", True, 60.0)

    assert measured(1)["passed"]
    with pytest.raises(WorkFailed, match="captured no graph"):
        measured(0)


@pytest.mark.parametrize("facts", [None, {"name": "some GPU"}], ids=["toy", "real"])
def test_every_rank_that_is_held_against_the_cpu_is_a_legal_job(facts: dict[str, str] | None, tmp_path: Path) -> None:
    setting = Setting(tmp_path, facts)
    names = {row.name for row in works.rows(setting)}
    for precision in works.PRECISIONS:
        for recompute in ("None", "Full", "Selective"):
            for compiled in (False, True):
                allowed_parallelism.validate(
                    TrainingConfig.model_validate(works.config(setting, precision, recompute, compiled))
                )
                assert works.row_name(precision, recompute, compiled) in names


def test_what_is_measured_on_a_device_is_a_legal_job_that_computes_nowhere_else(tmp_path: Path) -> None:
    setting = Setting(tmp_path, {"name": "some GPU"})
    options = {**checkpoints.SIZES["0.3B"], "vocabulary": checkpoints.VOCABULARY}
    jobs = [checkpoints.config(setting, options, tier) for tier in checkpoints.TIERS]
    for vocabulary, case in itertools.product(speed.REAL, speed.CASES):
        jobs.append(speed.config(setting, speed.REAL[vocabulary], case, speed.Blocks()))
    for job in [*jobs, works.config(setting, "fp32")]:
        config = TrainingConfig.model_validate(job)
        allowed_parallelism.validate(config)
        assert config.device == "CUDA"


@pytest.mark.parametrize("losses", [[2.0, 1.1], [2.0, float("nan")], [2.0], []])
def test_other_losses_are_beyond_every_tolerance(losses: list[float]) -> None:
    assert works.difference(losses, [2.0, 1.0]) > max(works.TOLERANCES.values())
    assert works.difference([2.0, 1.0], [2.0, 1.0]) == 0.0


@pytest.mark.processes
@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("well", "well"),
        ("exception", "exit code 1; {log} ends with: ValueError: broken"),
        ("exit", "exit code 3; {log} ends with: its last words"),
        ("signal", "signal 9; {log} ends with: its last words"),
        ("hang", "it was stopped after 0 s; {log} ends with: its last words"),
    ],
)
def test_work_that_fails_ends_alone_and_its_last_words_are_told(
    ends: str, said: str, ranks: Ranks, tmp_path: Path
) -> None:
    assert ranks.call(cuda_probe.ended, ends, str(tmp_path)) == said.format(log=tmp_path / "log")


class Clock:
    """Each row takes ten seconds of it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def row(self, name: str, numbers: Numbers | Exception, least_s: float = 5.0) -> Row:
        def work(limit_s: float) -> Numbers:
            self.now += 10.0
            if isinstance(numbers, Exception):
                raise numbers
            return {**numbers, "limit_s": limit_s}

        return Row(name, work, least_s, 20.0)


DEVICE = {"name": "NVIDIA H200", "memory_gib": 140}


def run_rows(folder: Path, clock: Clock, *rows: Row, facts: dict[str, Any] | None = None) -> dict[str, str]:
    part = Part("works", ("number",), lambda setting: [*rows], lambda numbers: (f"{numbers.get('n', '')}",))
    return programme.run(part, Setting(folder / "works", facts), 25.0, clock=clock)


@pytest.mark.parametrize("bad", ["", "works", "parity"])
def test_without_a_name_all_commands_run_in_their_order_and_one_bad_row_is_enough_for_exit_code_1(
    bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def only_row(name: str) -> Part:
        def work(limit_s: float) -> Numbers:
            begun.append(name)
            return {"passed": name != bad}

        return Part(name, ("number",), lambda setting: [Row("row", work)], lambda numbers: ("1",))

    known = {name: only_row(name) for name in programme.parts()}
    monkeypatch.setattr(programme, "parts", lambda: known)
    monkeypatch.setattr(programme, "PRELOADED", ())
    monkeypatch.setattr(programme.gc, "freeze", lambda: None)
    monkeypatch.setattr(programme.child, "run", lambda work, log, limit_s: None)
    assert programme.main(["--out", str(tmp_path)]) == (1 if bad else 0)
    assert begun == ["works", "runs", "speed", "checkpoints", "parity", "profile"]
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == sorted(f"{name}.jsonl" for name in begun)


def test_the_head_of_a_table_says_what_it_is_of(tmp_path: Path) -> None:
    assert Setting(tmp_path, None).words == ON_CPU
    on_device = Setting(tmp_path, DEVICE)
    assert on_device.words.startswith("NVIDIA H200, 140 GiB, torch ")


@pytest.mark.parametrize(("facts", "limits"), [(DEVICE, [20.0, None, 15.0, None]), (None, [25.0, None, 15.0, None])])
def test_a_row_that_has_no_time_left_is_named_and_not_begun(
    facts: dict[str, Any] | None, limits: list[float | None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    rows = [clock.row(name, {"n": 1}, least_s) for name, least_s in (("a", 5.0), ("long", 20.0), ("b", 5.0))]
    statuses = run_rows(tmp_path, clock, *rows, clock.row("late", {"n": 1}, 6.0), facts=facts)
    assert statuses == {"a": "good", "long": "no time left", "b": "good", "late": "no time left"}
    assert programme.last_line("works", statuses) == (
        'works: 2 good, 2 no time left; `--rows "long" "late"` runs those that are left'
    )
    written = [json.loads(line) for line in (tmp_path / "works.jsonl").read_text().splitlines()]
    assert [row.get("limit_s") for row in written] == limits
    assert "number" in capsys.readouterr().out


def test_each_row_ends_in_one_of_four_ways_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    clock.now = -100.0
    ways = {"good": {"n": 1}, "BEYOND": {"n": float("inf"), "passed": False}, "FAILED": WorkFailed("it broke")}
    for way, numbers in {**ways, "not here": NotHere("there is none")}.items():
        assert run_rows(tmp_path, clock, clock.row("x", numbers)) == {"x": way}
    printed = capsys.readouterr().out
    written = [json.loads(line) for line in (tmp_path / "works.jsonl").read_text().splitlines()]
    assert [row.get("n") for row in written] == [1, "inf", None, None]
    assert "    it broke\n" in printed
    assert "    there is none\n" in printed


def test_a_row_is_written_down_before_the_next_one_begins(tmp_path: Path) -> None:
    def killed(limit_s: float) -> Numbers:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_rows(tmp_path, Clock(), Clock().row("first", {"n": 1}), Row("second", killed))
    (written,) = (tmp_path / "works.jsonl").read_text().splitlines()
    assert json.loads(written)["row"] == "first"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["wroks"], "wroks is no command; there are works, "),
        (["works", "--seconds", "0"], "--seconds 0: a number above 0 is expected"),
    ],
)
def test_a_wrong_command_line_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        programme.read(words, programme.parts())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_python_that_lacks_a_package_is_told_in_a_sentence() -> None:
    words = surroundings.lacking(lambda name: name == "torch", (3, 12))
    assert "has no numpy and no pydantic, which the trainer imports; `make venv`" in words
    assert surroundings.lacking(lambda name: True, (3, 12)) == ""
    assert "is Python 3.10, and the trainer needs 3.11 or newer" in surroundings.lacking(lambda name: True, (3, 10))


def test_without_torch_the_command_says_what_is_missing_and_ends_with_exit_code_2() -> None:
    bare = subprocess.run(
        [sys.executable, "-S", "-m", "benchmarks.cuda", "works"],
        cwd=surroundings.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert bare.returncode == 2
    assert bare.stdout == ""
    assert re.fullmatch(r"cuda: \S+ has no torch and no numpy and no pydantic, which the trainer .*\n", bare.stderr)


def test_a_python_in_which_nothing_of_ours_is_installed_has_all_commands(tmp_path: Path) -> None:
    packages = Path(np.__file__).parents[1]  # without the .pth files, so without our own packages
    code = f"import sys; sys.path.append({str(packages)!r}); from benchmarks.cuda import surroundings as s; s.prepare()"
    code += "; from benchmarks.cuda import programme; print(*programme.parts())"
    command = [sys.executable, "-S", "-c", code]
    ended = subprocess.run(command, cwd=surroundings.ROOT, capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["works", "runs", "speed", "checkpoints", "parity", "profile"], ended.stderr


@pytest.mark.parametrize(
    ("venv", "given", "used"),
    [(False, [], "python3"), (True, [], "{venv}/bin/python"), (True, ["PYTHON=python3.12"], "python3.12")],
)
def test_make_installs_nothing_and_takes_the_python_that_is_there(
    venv: bool, given: list[str], used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHON", "MAKEFLAGS"):  # of a make that runs this test
        monkeypatch.delenv(name, raising=False)
    if venv:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python").touch()
    words = ["make", "--no-print-directory", "-n", "cuda", "ONLY=works", f"VENV={tmp_path}", *given]
    shown = subprocess.run(words, cwd=surroundings.ROOT, capture_output=True, text=True, check=True).stdout
    assert shown.split() == [used.format(venv=tmp_path), "-m", "benchmarks.cuda", "works"]
