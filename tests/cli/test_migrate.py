"""`trainmaster migrate`: from a file of before to standard output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import WriteJob
from tests.former import former_status
from trainmaster_operator.cli.job_files import job_document
from trainmaster_operator.cli.main import main


def test_a_file_of_before_is_printed_in_the_spelling_of_now(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job(spec__training__parallelism={"dp_replicate": 2, "dp_shard": 2})
    assert main(["migrate", str(file)]) == 0
    out, err = capsys.readouterr()
    assert yaml.safe_load(out)["spec"]["training"]["parallelism"] == {"dpReplicate": 2, "dpShard": 2}
    assert "spec.training.parallelism.dp_shard: is spec.training.parallelism.dpShard now" in err
    assert "comments are not kept" in err
    (tmp_path / "new.yaml").write_text(out)
    assert main(["validate", str(tmp_path / "new.yaml"), "--cluster"]) == 0


def test_a_file_of_now_is_printed_with_its_comments(write_job: WriteJob, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_job()
    file.write_text("# mine\n" + file.read_text())
    assert main(["migrate", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out == file.read_text()
    assert err == f"{file}: nothing has to be changed\n"


def test_a_file_that_can_be_read_only_once_is_printed_too(
    write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write_job().read_text()
    reader, writer = os.pipe()
    with open(writer, "w") as file:
        file.write(text)
    assert main(["migrate", f"/dev/fd/{reader}"]) == 0
    os.close(reader)
    assert capsys.readouterr().out == text


def test_a_job_that_was_read_from_a_cluster_may_lack_fields_and_that_is_said(
    write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job()
    stored = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**stored, "status": former_status()}))
    assert main(["migrate", str(file)]) == 0
    err = capsys.readouterr().err
    assert "drops fields of the former spelling once its CRD is upgraded" in err
    assert f"kubectl get dtj {stored['metadata']['name']} -o jsonpath='{{.metadata.annotations.kubectl" in err


def test_a_file_that_is_no_job_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pod.yaml").write_text("kind: Pod\n")
    assert main(["migrate", str(tmp_path / "pod.yaml")]) == 2
    assert "pod.yaml: a DistributedTrainingJob is expected, not 'Pod'" in capsys.readouterr().err


TEXTS = ["3e-4", "1e5", "1.5", "3", "true", "Off", "null", "2024-01-01", "~", "0x10", "a: b", "é", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_text_again_when_what_was_written_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.yaml").write_text(job_document.dump({"args": [text]}))
    assert job_document.load(tmp_path / "job.yaml").value == {"args": [text]}
