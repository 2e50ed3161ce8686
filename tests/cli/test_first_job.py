"""`trainmaster init`: what it writes is valid and runs, and nothing is overwritten."""

from __future__ import annotations

import resource
import shlex
import sys
from pathlib import Path

import pytest

from tests.cli.on_cluster import refused
from tests.e2e.harness import LIMIT_S, started
from tests.e2e.warm import COMMAND
from trainmaster_operator.cli.job_files.job_document import load
from trainmaster_operator.cli.main import main


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_first_job_is_valid_and_the_last_line_is_what_to_type_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Next: trainmaster run job.yaml"
    assert main(["validate", "job.yaml"]) == 0
    assert capsys.readouterr().out == "job.yaml: job job is valid (2 ranks)\n"


@pytest.mark.parametrize("folder", [".", "my scripts", "é\N{ROCKET}"])
def test_a_first_job_of_a_script_is_valid(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(folder, "train.py")
    script.parent.mkdir(exist_ok=True)
    script.write_text("print('hello')\n")
    assert main(["init", "mine.yaml", "--script", str(script)]) == 0
    assert main(["validate", "mine.yaml"]) == 0
    container = load(Path("mine.yaml")).value["spec"]["workers"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["python", str(script)]


def test_no_part_of_a_file_is_left_where_there_is_no_space(capsys: pytest.CaptureFixture[str]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # Python ignores the signal that comes with it.
    try:
        assert main(["init"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "job.yaml: cannot be written: file too large; choose another place" in capsys.readouterr().err
    assert not Path("job.yaml").exists()


def test_a_launcher_in_a_job_of_two_pods_is_said_to_count_for_each_pod(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").touch()
    assert main(["init", "--script", "train.py"]) == 0
    file = Path("job.yaml")
    file.write_text(file.read_text().replace('"python"', '"torchrun", "--nproc-per-node=2"'))
    capsys.readouterr()
    assert main(["validate", "job.yaml"]) == 0
    words = "4 ranks: 2 pods x 2 ranks of --nproc-per-node"
    assert capsys.readouterr().out == f"job.yaml: job job is valid ({words})\n"


def test_every_field_that_a_person_may_change_has_a_comment() -> None:
    assert main(["init"]) == 0
    lines = Path("job.yaml").read_text().splitlines()
    told = {line.split(":")[0].strip() for line in lines if " # " in line}
    assert {"name", "replicas", "source", "path", "steps", "global", "seed", "every", "keep"} <= told


@pytest.mark.parametrize("words", [["job.yaml"], ["job.yaml", "--script", "train.py"]])
def test_a_file_that_exists_is_not_overwritten(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text("mine")
    Path("train.py").touch()
    assert refused(capsys, "init", *words) == "job.yaml: exists already, and is not overwritten; choose another name"
    assert Path("job.yaml").read_text() == "mine"


def test_what_cannot_be_written_or_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "init", "--script", "gone.py").startswith("--script gone.py: there is no such file")
    assert refused(capsys, "init", "gone/job.yaml").startswith("gone/job.yaml: cannot be written: no such file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("My GPT.yaml", "my-gpt"),
        ("7b.yaml", "job-7b"),
        ("true.yaml", "job-true"),
        ("_.yaml", "job"),
        ("a" * 99 + ".yaml", "a" * 40),
    ],
)
def test_the_job_has_the_name_of_its_file(file: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", file]) == 0
    assert shlex.split(capsys.readouterr().out.splitlines()[-1])[1:] == ["trainmaster", "run", file]
    assert load(Path(file)).value["metadata"]["name"] == name
    assert main(["validate", file]) == 0


@pytest.mark.processes
@pytest.mark.usefixtures("warm_runs")
def test_a_first_job_runs_to_its_end() -> None:
    """With fewer steps of a smaller model: the rest of the file is as it is written."""
    assert main(["init"]) == 0
    text = Path("job.yaml").read_text()
    smaller = (
        ("steps: 200", "steps: 20"),
        ("{layers: 2, heads: 4, width: 96, context: 128}", "{layers: 1, heads: 2, width: 32, context: 32}"),
    )
    for large, small in smaller:
        assert large in text
        text = text.replace(large, small)
    Path("job.yaml").write_text(text)
    with started(
        [sys.executable, "-m", COMMAND, "run", "job.yaml", "--plain"], {"CUDA_VISIBLE_DEVICES": ""}
    ) as process:
        output, _ = process.communicate(timeout=LIMIT_S)
        assert process.wait() == 0, output
    assert Path("runs/job/report.html").is_file()


@pytest.mark.processes
@pytest.mark.usefixtures("warm_runs")
def test_a_first_job_of_a_script_runs_to_its_end() -> None:
    Path("train.py").write_text("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    assert main(["init", "job.yaml", "--script", "train.py"]) == 0
    with started([sys.executable, "-m", COMMAND, "run", "job.yaml", "--plain"]) as process:
        output, _ = process.communicate(timeout=LIMIT_S)
        assert process.wait() == 0, output
    assert "rank 0 of 2" in output
