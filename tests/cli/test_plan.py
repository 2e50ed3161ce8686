"""`trainmaster plan`: a table of layouts, or a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.api.jobs import PYTORCH
from tests.cli import warm_child
from tests.cli.conftest import WriteJob
from trainmaster_operator.cli.job_files.validate_job import load_job
from trainmaster_operator.cli.main import main
from trainmaster_operator.cli.this_machine import trainer_process


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """This machine is measured once for all tests here, and leaves nothing in anybody's home."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planners are forked."""
    monkeypatch.setattr(trainer_process, "run", warm_child.run)


@pytest.mark.processes
def test_layouts_are_listed_best_first(
    write_job: WriteJob, tmp_path: Path, capfd: pytest.CaptureFixture[str], warm: None
) -> None:
    file = tmp_path / "plan.json"
    assert main(["plan", str(write_job()), "--ranks", "2", "--memory", "1Gi", "--top", "3", "--json", str(file)]) == 0
    out = capfd.readouterr().out
    lines = out.splitlines()
    layouts = json.loads(file.read_text())["layouts"]
    table = lines.index(next(line for line in lines if line.startswith("layout ")))
    assert any(line.startswith("this machine as measured, its ") for line in lines)
    assert max(map(len, lines)) <= 110
    assert lines[table + 4] == ""  # three layouts, then the end
    assert lines[table + 5 : table + 7] == [
        f"{len(layouts)} layouts are legal.",
        "The table shows the best 3; --top N changes that.",
    ]
    assert [layout["seconds"] for layout in layouts] == sorted(layout["seconds"] for layout in layouts)
    best = layouts[0]
    assert f"micro: {best['microBatch']}}}" in out
    assert all(f"{axis}: {n}" in out for axis, n in best["parallelism"].items() if isinstance(n, int))


@pytest.mark.processes
def test_the_best_is_trained_for_some_steps(write_job: WriteJob, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(write_job()), "--ranks", "2", "--top", "1", "--measure", "1"]) == 0
    lines = capfd.readouterr().out.splitlines()
    planned = next(lines[i + 1] for i, line in enumerate(lines) if line.startswith("layout "))
    name, *numbers = lines[-1].split("  ")[0], *lines[-1].split()
    assert any(line.startswith("Measured on this machine: 2 processes on") for line in lines)
    assert planned.startswith(name.rstrip())
    measured, estimated = (float(word.replace(",", "")) for word in (numbers[-4], numbers[-1]))
    assert measured > 0
    assert estimated > 0


@pytest.mark.processes
def test_what_fits_nowhere_is_said(write_job: WriteJob, capfd: pytest.CaptureFixture[str], warm: None) -> None:
    assert main(["plan", str(write_job()), "--ranks", "2", "--memory", "1Ki"]) == 0
    out = capfd.readouterr().out
    assert "None fits: more ranks, a smaller model or context, recompute Full or precision bf16 would help." in out
    assert "for spec.training" not in out


@pytest.mark.processes
def test_a_planner_that_nobody_reads_any_more_ends_without_a_word(write_job: WriteJob) -> None:
    _, job = load_job(write_job())
    assert job.spec.training is not None
    config = job.spec.training.model_dump_json().encode()
    arguments = ["--ranks", "2", "--tflops", "1", "--bandwidth", "1", "--top", "9"]
    assert warm_child.run_unread("planner", arguments, config) == (141, "")


@pytest.mark.processes
def test_a_planner_that_cannot_write_its_table_says_so(write_job: WriteJob, capfd: pytest.CaptureFixture[str]) -> None:
    _, job = load_job(write_job())
    assert job.spec.training is not None
    config = job.spec.training.model_dump_json().encode()
    arguments = ["--ranks", "2", "--tflops", "1", "--bandwidth", "1", "--top", "9", "--json", "/dev/full"]
    assert warm_child.run("planner", arguments, config) == 2
    assert capfd.readouterr().err == "trainmaster: --json /dev/full: can't be written: no space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ranks", "0"], "--ranks 0: at least 1 is expected"),
        (["--memory", "plenty"], "--memory plenty: a quantity above 0 is expected, for example 40Gi or 512M"),
        (["--memory", "0"], "--memory 0: a quantity above 0 is expected, for example 40Gi or 512M"),
        (["--tflops", "-1"], "--tflops -1.0: must be above 0"),
        (["--between-nodes", "0"], "--between-nodes 0.0: must be above 0"),
        (["--measure", "-1"], "--measure -1: must be 0 or more"),
        (["--top", "0"], "--top 0: must be above 0"),
        (["--json", "none/plan.json"], "--json none/plan.json: there is no folder"),
        (["--json", "/proc/plan.json"], "--json /proc/plan.json: can't be written: no such file or directory; choose"),
        (["--json", "."], "--json .: can't be written: is a directory; choose another file"),
        (
            ["--ranks", "7"],
            "--ranks 7: the job's model and batch have no layout for this number of ranks; the nearest numbers that",
        ),
        (["--ranks", "10000000"], "--ranks 10000000: layouts are listed for at most 1000000 ranks"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    write_job: WriteJob, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(["plan", str(write_job()), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"trainmaster: {sentence}")


def test_a_job_with_more_ranks_than_layouts_are_listed_for_is_refused(
    write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(write_job(spec__workers={"replicas": 100_000, "ranksPerPod": 256}))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "trainmaster: the job's number of ranks 25600000: layouts are listed for at most 1000000 ranks; set --ranks"
    )


def test_a_job_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(tmp_path / "none.yaml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "none.yaml" in line


def test_degrees_that_do_not_suit_the_jobs_own_ranks_are_no_obstacle(
    write_job: WriteJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(trainer_process, "run", lambda module, arguments, *rest, **how: asked.append(arguments) or 0)
    file = write_job(
        spec__workers={"replicas": 2},
        spec__training__parallelism={"dpShard": 32, "sharding": {"stage": 2}},
        spec__training__batch={"global": 64},
    )
    assert main(["plan", str(file), "--ranks", "64"]) == 0
    assert main(["plan", str(file)]) == 0
    assert [arguments[:2] for arguments in asked] == [["--ranks", "64"], ["--ranks", "2"]]


def test_a_node_has_as_many_ranks_as_a_pod_of_the_job(write_job: WriteJob, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(trainer_process, "run", lambda module, arguments, *rest, **how: asked.append(arguments) or 0)
    file = write_job(spec__workers={"replicas": 2, "ranksPerPod": 8}, spec__training__batch={"global": 64})
    assert main(["plan", str(file), "--between-nodes", "12.5"]) == 0
    (arguments,) = asked
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert (given["--ranks"], given["--ranks-per-node"], given["--between-nodes"]) == ("16", "8", "12.5")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            [],
            "if this machine has no GPU, the speed of its CPU is measured first; then 9 layouts of 2 ranks are "
            "compared",
        ),
        (["--tflops", "400"], "9 layouts of 2 ranks are compared"),
    ],
)
def test_a_plan_says_what_it_will_do_before_anything_else_runs(
    given: list[str],
    words: str,
    write_job: WriteJob,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(trainer_process, "run", lambda *_, **how: said.append(capsys.readouterr().err) or 0)
    assert main(["plan", str(write_job()), "--ranks", "2", *given]) == 0
    assert said == [f"trainmaster: {words}\n"]


def test_a_script_has_no_layout_to_plan(write_job: WriteJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(write_job(PYTORCH))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "only a job with spec.training has a layout to plan" in line


@pytest.mark.parametrize(
    ("ram", "given"),
    [
        ({}, {"--ram-limit": str(2 << 30), "--ram-peers": "1"}),
        ({"limit": "64Mi", "peers": 0}, {"--ram-limit": str(64 << 20), "--ram-peers": "0"}),
        ({"limit": "0"}, {}),
    ],
)
def test_the_planner_knows_what_a_pod_has_for_checkpoints_in_memory(
    write_job: WriteJob, monkeypatch: pytest.MonkeyPatch, ram: dict[str, object], given: dict[str, str]
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(trainer_process, "run", lambda module, arguments, *rest, **how: asked.append(arguments) or 0)
    file = write_job(
        spec__workers={"replicas": 2, "ranksPerPod": 2},
        spec__training__batch={"global": 64},
        spec__checkpoint={"directory": "/checkpoints", "ram": ram},
    )
    assert main(["plan", str(file)]) == 0
    (arguments,) = asked
    told = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert {name: value for name, value in told.items() if name.startswith("--ram")} == given
