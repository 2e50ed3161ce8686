"""The output folder: whose it is, and what a later run goes on from."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.jobs import job
from tests.cli.runs import CLOSED, CRASH, RECOVERY, output_folder, status
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.cli import output_folder as output
from trainmaster_operator.cli import resumed_run
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.report import run_report
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.status_mapping import read_status, write_status


def before(left: JobState) -> dict[str, Any]:
    meta = {"name": "tiny", "namespace": "default", "uid": "u-1", "generation": 3, "creationTimestamp": "T"}
    return {**job(), "metadata": meta, "status": write_status(left)}


def resumed(left: JobState, last_round: int = 0) -> tuple[dict[str, Any], JobState]:
    resource = resumed_run.resumed_resource(before(left), job(metadata__namespace="default"), last_round)
    DistributedTrainingJob.model_validate(resource)
    return resource, read_status(resource["status"])


def test_a_resumed_job_keeps_its_uid_and_gets_a_round_that_nobody_has_used() -> None:
    resource, again = resumed(status(JobPhase.SUSPENDED, round=4), last_round=6)
    assert resource["metadata"]["uid"] == "u-1"
    assert resource["metadata"]["creationTimestamp"] == "T"
    assert again.round == 7
    assert again.phase is JobPhase.SUSPENDED
    assert again.roundStore == ""


def test_what_belonged_to_the_processes_of_the_last_run_is_gone() -> None:
    left = status(roundStore="127.0.0.1:1", stopAt=70, stopBound=True, leaderEpoch=5, recoveries=[CLOSED, RECOVERY])
    _, again = resumed(left)
    assert (again.stopAt, again.stopBound, again.leaderEpoch) == (None, False, 0)
    assert again.recoveries == [CLOSED], "one that never came to its end has no clock to show"
    assert again.progress.step == 60


def test_a_failed_job_that_is_run_again_keeps_its_last_failure_and_gets_a_new_budget() -> None:
    _, again = resumed(status(JobPhase.FAILED, lastFailure=CRASH, completionTime="T"))
    assert again.lastFailure == CRASH
    assert again.completionTime == ""
    assert again.spent == []


def test_a_job_that_never_got_to_a_round_starts_from_the_beginning() -> None:
    _, again = resumed(JobState())
    assert (again.phase, again.round) == (JobPhase.PENDING, 0)


def test_the_highest_round_is_known_from_the_lineage(tmp_path: Path) -> None:
    assert resumed_run.highest_round(tmp_path) == 0
    (tmp_path / "lineage").mkdir()
    for name in ("round-1.json", "round-000012.json", "round-3.json", "other"):
        (tmp_path / "lineage" / name).touch()
    assert resumed_run.highest_round(tmp_path) == 12


def test_only_one_run_at_a_time_holds_a_folder(tmp_path: Path) -> None:
    held = output.OutputFolder.claim(tmp_path / "out")
    with pytest.raises(Refusal, match="another run is using this folder"):
        output.OutputFolder.claim(tmp_path / "out")
    held.release()
    output.OutputFolder.claim(tmp_path / "out").release()


def test_fresh_throws_away_what_a_run_left_and_nothing_else(tmp_path: Path) -> None:
    folder = output.OutputFolder.claim(tmp_path / "out")
    folder.begin(before(status()))
    for name in ("metrics.jsonl", "mine.txt"):
        (folder.path / name).touch()
    (folder.path / "checkpoints" / "step-1.r1").mkdir(parents=True)
    folder.clear()
    assert [path.name for path in folder.path.iterdir()] == ["mine.txt"]
    folder.release()


def test_a_run_that_was_stopped_before_its_first_status_can_be_started_again(tmp_path: Path) -> None:
    output.OutputFolder.claim(tmp_path / "out").release()
    assert output.read_status(tmp_path / "out") is None


def test_a_run_whose_first_status_finds_no_space_can_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = output.OutputFolder.claim(tmp_path / "out")

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left"):
            folder.begin(before(status()))
    folder.release()
    assert output.read_status(folder.path) is None


def test_only_fresh_goes_on_where_fresh_was_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (folder / "checkpoints" / "step-1.r1").mkdir(parents=True)
    with pytest.raises(Refusal, match=r"holds a part of a run, and no status\.yaml; --fresh deletes that part"):
        output.read_status(folder)
    assert output.read_status(folder, fresh=True) is None
    (folder / "mine.txt").touch()
    with pytest.raises(Refusal, match="holds other files"):
        output.read_status(folder, fresh=True)


def test_the_status_file_holds_the_whole_resource(tmp_path: Path) -> None:
    folder = output.OutputFolder.claim(tmp_path / "out")
    resource = before(status(lastFailure=CRASH))
    folder.write_status(resource)
    assert yaml.safe_load((folder.path / "status.yaml").read_text()) == resource
    assert output.read_status(folder.path) == resource
    folder.release()


@pytest.mark.parametrize("text", ["", "a: [", "kind: Pod\nmetadata: {name: x}", "3"])
def test_a_status_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "status.yaml").write_text(text)
    with pytest.raises(Refusal, match=r"status\.yaml"):
        output.read_status(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spec__training__batch": {"global": 16}}, r"spec\.training\.batch\.global \(8, now 16\)"),
        (
            {"spec__training__model": {"options": {"layers": 9}}},
            r"a different spec\.training\.model\.options\.layers \(.*, now 9\);",
        ),
    ],
)
def test_a_job_that_would_continue_another_is_refused(changes: dict[str, Any], words: str) -> None:
    now = DistributedTrainingJob.model_validate(job(**changes))
    with pytest.raises(Refusal, match=words):
        resumed_run.check_same_job(Path("out"), before(status()), now)


def test_a_run_whose_job_is_in_a_spelling_of_before_is_refused() -> None:
    old = before(status())
    old["spec"]["training"]["parallelism"] = {"dp_shard": 4}
    with pytest.raises(Refusal, match="that another version of trainmaster wrote; choose another --out"):
        resumed_run.check_same_job(Path("out"), old, DistributedTrainingJob.model_validate(job()))


def test_more_steps_and_another_budget_are_the_same_job() -> None:
    changes = {"spec__training__steps": 500, "spec__recovery": {"budget": {"pod": 9}}}
    resumed_run.check_same_job(Path("out"), before(status()), DistributedTrainingJob.model_validate(job(**changes)))


@pytest.fixture
def of_another_user() -> Iterator[Path]:
    """An output folder that this process may read and not write: as root it becomes another user for the test."""
    above = Path(tempfile.mkdtemp(prefix="tm-"))
    above.chmod(0o755)
    folder = output_folder(above / "out")
    (folder / "logs").mkdir()
    folder.chmod(0o555)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(was)
        folder.chmod(0o755)
        shutil.rmtree(above)


def test_a_folder_of_another_user_is_refused_before_anything_runs(of_another_user: Path) -> None:
    with pytest.raises(Refusal, match=r"cannot be used as the output folder: permission denied; choose another --out$"):
        output.OutputFolder.claim(of_another_user)
    assert not output.is_held(of_another_user)


def test_a_report_that_cannot_be_written_is_refused(of_another_user: Path) -> None:
    with pytest.raises(Refusal, match=r"out/report\.html: cannot be written: permission denied; "):
        run_report.write(of_another_user)


def test_fresh_refuses_what_it_cannot_throw_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = output.OutputFolder.claim(tmp_path / "out")
    folder.begin(before(status()))

    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", denied)
    with pytest.raises(Refusal, match=r"out/logs: cannot be deleted: permission denied; choose another --out$"):
        folder.clear()
    folder.release()
