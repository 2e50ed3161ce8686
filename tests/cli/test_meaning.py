"""A word on the command line: the folder of a run, the name of a run, or a job on a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import WriteJob
from tests.cli.on_cluster import SPACE, Cluster, put, refused
from tests.cli.runs import RAISED, SUCCEEDED, output_folder, status
from trainmaster_operator.cli.main import main
from trainmaster_operator.planning.facts.job_state import JobPhase


@pytest.fixture
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, on a machine without a kubeconfig."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def with_a_log(folder: Path) -> Path:
    """The output folder of a run whose rank 0 has printed something."""
    out = output_folder(folder, SUCCEEDED)
    (out / "logs").mkdir()
    (out / "logs" / "tiny-worker-0-0.log").write_text("[rank 0] hello\n")
    return out


@pytest.mark.parametrize("word", ["runs/tiny", "./runs/tiny", "tiny"])
def test_a_run_is_named_by_its_folder_or_by_its_name(
    no_cluster: Path, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with_a_log(no_cluster / "runs" / "tiny")
    assert main(["status", word]) == 0
    assert capsys.readouterr().out.startswith("tiny: Succeeded")
    assert main(["logs", word]) == 0
    assert capsys.readouterr().out == "[rank 0] hello\n"
    assert main(["report", word]) == 0
    assert capsys.readouterr() == ("runs/tiny/report.html\n", "")


def test_a_rank_that_has_printed_nothing_is_told_on_stderr(
    no_cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_a_log(no_cluster / "tiny")
    status = no_cluster / "tiny" / "status.yaml"
    resource = yaml.safe_load(status.read_text())
    resource["spec"]["workers"] = {"replicas": 2}
    status.write_text(yaml.safe_dump(resource))
    assert main(["logs", "tiny", "--rank", "1"]) == 0
    assert capsys.readouterr() == ("", "trainmaster: rank 1 has printed nothing; --all shows all ranks\n")


def test_a_name_that_fits_two_runs_is_refused_with_what_to_write(
    no_cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output_folder(no_cluster / "tiny")
    output_folder(no_cluster / "runs" / "tiny")
    assert refused(capsys, "status", "tiny") == "tiny: can mean two runs; write ./tiny or runs/tiny"
    assert main(["status", "./tiny"]) == 0


def test_a_folder_without_a_run_does_not_hide_the_run_of_that_name(
    no_cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (no_cluster / "tiny").mkdir()
    output_folder(no_cluster / "runs" / "tiny")
    assert main(["status", "tiny"]) == 0
    assert capsys.readouterr().out.startswith("tiny: Succeeded")


def test_a_word_that_means_nothing_is_refused_with_what_was_looked_for(
    no_cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, "status", "runs/tiny").startswith("runs/tiny: does not exist; the output folder of a run")
    assert main(["logs", "tiny"]) == 2
    nothing, cluster, hint = capsys.readouterr().err.splitlines()
    assert nothing == (
        "trainmaster: tiny: there is no run in tiny or runs/tiny, and no cluster on which it could be a job"
    )
    assert cluster.startswith("trainmaster: no kubeconfig: ")
    assert "trainmaster validate" in hint


def test_a_run_goes_before_a_job_of_its_name_and_it_is_said_how_to_mean_the_job(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    put(cluster.store, write_job(), now=status(step=60))
    output_folder(Path("runs/tiny"))
    assert main(["status", "tiny"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("tiny: Succeeded")
    assert err == ("trainmaster: tiny is the run in runs/tiny; to mean the job tiny on a cluster, add -n NAMESPACE\n")
    assert main(["status", "tiny", "-n", SPACE]) == 0
    assert capsys.readouterr().out.startswith("tiny in namespace team-a: Running")


def test_a_folder_that_holds_no_run_is_told_from_a_job(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    put(cluster.store, write_job(), now=status(step=60))
    Path("tiny").mkdir()
    assert refused(capsys, "status", "tiny") == (
        "tiny: the folder tiny holds no run; to mean the job tiny on a cluster, add -n NAMESPACE"
    )


def test_a_path_is_never_a_job(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    output_folder(Path("runs/tiny"))
    assert refused(capsys, "status", "runs/tiny", "-n", SPACE).startswith("runs/tiny: is not the name of a job, and -n")
    assert refused(capsys, "restart", "runs/tiny").startswith("runs/tiny: the name of a job on a cluster is expected")
    assert refused(capsys, "fault", "runs/tiny", "kill:rank=1").endswith("use trainmaster run --fault")


def test_the_report_of_a_job_has_its_recoveries_and_the_command_that_shows_its_logs(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    put(cluster.store, write_job(), now=SUCCEEDED)
    assert main(["report", "tiny"]) == 0
    assert capsys.readouterr().out == "tiny-report.html\n"
    page = Path("tiny-report.html").read_text()
    for words in ("restart in place", "killed by SIGKILL", "trainmaster logs tiny -n team-a --rank 2", "Crash"):
        assert words in page
    assert "No loss was recorded" not in page
    assert main(["report", "tiny", "--file", "other.html"]) == 0
    assert Path("other.html").read_text() == page


def test_the_report_of_a_failed_job_begins_with_its_cause_its_last_words_and_the_command_that_shows_its_log(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    put(cluster.store, write_job(), now=status(JobPhase.FAILED, lastFailure=RAISED))
    assert main(["report", "tiny"]) == 0
    page = Path(capsys.readouterr().out.strip()).read_text()
    order = [
        "Why it failed",
        "rank 2: Crash after step 59: exit code 1: ValueError",
        "The last words of rank 2",
        "Traceback (most recent call last)",
        "trainmaster logs tiny -n team-a --rank 2",
        "restarts",
    ]
    places = [page.index(words) for words in order]
    assert places == sorted(places)


def test_a_report_can_be_written_elsewhere(no_cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = output_folder(no_cluster / "out")
    assert main(["report", str(out), "--file", "page.html"]) == 0
    assert (no_cluster / "page.html").is_file()
    assert not (out / "report.html").exists()
    capsys.readouterr()
    assert refused(capsys, "report", str(out), "--file", "gone/page.html").startswith(
        "gone/page.html: cannot be written"
    )


def test_what_was_never_a_status_is_no_run(no_cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (no_cluster / "out").mkdir()
    (no_cluster / "out" / "status.yaml").write_text(json.dumps({"kind": "Pod"}))
    assert "is not the status of a DistributedTrainingJob" in refused(capsys, "status", "./out")
