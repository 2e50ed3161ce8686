"""Bad input: a sentence for each problem on stderr, exit code 2, nothing left behind, no traceback."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.jobs import PYTORCH
from tests.cli.conftest import WriteJob
from tests.former import former_status
from trainmaster_operator.cli.main import main
from trainmaster_operator.cli.run import operator_address
from trainmaster_operator.cli.this_machine.script_interpreter import choose

CONTAINER = "spec__workers__template__spec__containers"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The sentences of a command that must be refused without leaving anything in the working directory."""
    before = sorted(os.listdir())
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sorted(os.listdir()) == before
    lines = err.splitlines()
    assert all(line.startswith("trainmaster: ") for line in lines)
    return [line.removeprefix("trainmaster: ") for line in lines]


def test_validate_prints_all_problems_in_the_order_of_the_lines(
    write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job(
        spec__workers={"replica": 4},
        spec__training__model={"options": {"layerz": 2, "width": 30, "heads": 4}},
        spec__training__batch={"global": 0},
    )
    lines = refused(capsys, "validate", str(file))
    assert [line.removeprefix(f"{file}:") for line in lines] == [
        "7: spec.workers.replica: unknown field; did you mean replicas?",
        "13: spec.training.batch.global: at least 1 is expected, not 0",
        "14: spec.training.parallelism: dpReplicate 2 x dpShard 2 = 4 ranks, but the job has 1 "
        "(workers.replicas 1 x ranksPerPod 1)",
        "18: spec.training.model.options: 'layerz' is unknown; did you mean layers?",
    ]


def test_validate_is_content_with_a_good_job(write_job: WriteJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(write_job())]) == 0
    assert "job tiny is valid (4 ranks)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"spec__training__data": {"path": "nowhere"}}, "spec.training.data.path: {here}/nowhere doesn't exist"),
        ({"spec__training__data": {"path": "~nobody here/a"}}, "data.path: {here}/~nobody here/a doesn't exist"),
        ({"spec__checkpoint": {"resume": "~nobody here/a"}}, "there is no checkpoint {here}/~nobody here/a"),
        ({"spec__training__data": {"path": "job.yaml"}}, "spec.training.data.path: {here}/job.yaml is not a folder"),
        ({"spec__training__data": {"path": "void"}}, "spec.training.data.path: {here}/void holds no text file"),
        (
            {"spec__training__data": {"source": "csv", "path": "."}},
            "'csv' is unknown; known are arrays, huggingface, images, parquet, text, tokens",
        ),
        ({"spec__training__model": {"name": "gtp"}}, "'gtp' is unknown; did you mean gpt?"),
        ({"spec__ttlSecondsAfterFinished": 60}, "spec.ttlSecondsAfterFinished: only a cluster deletes finished jobs"),
        ({"spec__managedBy": "a.b/c"}, "spec.managedBy: a.b/c is a controller on a cluster, and this machine has none"),
        ({"spec__checkpoint": {"resume": "gone"}}, "spec.checkpoint.resume: there is no checkpoint {here}/gone"),
        ({"spec__checkpoint": {"resume": "void"}}, "{here}/void is not a complete checkpoint: it has no manifest.json"),
        ({"spec__checkpoint": {"resume": "torn"}}, "spec.checkpoint.resume: {here}/torn/manifest.json can't be read"),
        ({"spec__suspend": True}, "spec.suspend: is true, and a suspended job does not run; remove the field"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_is_not_there_is_refused_before_anything_starts(
    tmp_path: Path,
    write_job: WriteJob,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    sentence: str,
) -> None:
    (tmp_path / "void").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "manifest.json").write_text('{"step": ')
    for command in ("validate", "run"):
        (line,) = refused(capsys, command, str(write_job(**changes)))
        assert sentence.format(here=tmp_path.resolve()) in line


@pytest.mark.parametrize(
    ("parallelism", "sentence"),
    [
        ({"tp": 4}, "parallelism.tp: 4 doesn't divide the model's heads 2; 1, 2 would"),
        ({"pp": 4}, "parallelism.pp: 4 needs at least 4 layers, and model.options.layers is 2; at most 2 would do"),
        ({"cp": 4}, "parallelism.cp: model.options.context 20 doesn't divide into 8"),
        ({"dpShard": 4, "ep": 2}, "parallelism.ep: model llama has no experts; only 1 would do"),
        (
            {"tp": 3},
            "parallelism: tp 3 needs a multiple of 3 ranks. Use tp 1 or 2, or 3 or 6 ranks. The job has 4 ranks "
            "(workers.replicas 4",
        ),
        (
            {"pp": 2, "pipeline": {"schedule": "ZBV"}, "dpReplicate": 2},
            "parallelism.pipeline: ZBV over pp 2 needs at least 4 micro-batches, and batch.global 4 over 2 "
            "data-parallel ranks makes 2",
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_layout_that_the_model_does_not_allow_is_refused(
    write_job: WriteJob, capsys: pytest.CaptureFixture[str], parallelism: dict[str, Any], sentence: str
) -> None:
    file = write_job(
        spec__workers={"replicas": 4},
        spec__training__model={"name": "llama", "options": {"layers": 2, "heads": 2, "width": 16, "context": 20}},
        spec__training__batch={"global": 4},
        spec__training__parallelism=parallelism,
    )
    for command in ("validate", "run"):
        lines = refused(capsys, command, str(file))
        assert any(f"spec.training.{sentence}" in line for line in lines), lines


def test_a_framework_that_no_python_here_has_is_told_before_anything_starts(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.py").touch()
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    choose.cache_clear()
    file = write_job(PYTORCH, **{CONTAINER: [{"name": "worker", "command": ["python", "t.py"]}]}, spec__framework="JAX")
    (line,) = refused(capsys, "run", str(file))
    assert f"spec.framework: JAX needs the package jax, and {sys.executable} does not have it" in line


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["deepspeed", "-H", "hosts", "t.py"], "deepspeed --hostfile can't be obeyed"),
        (["mpirun", "t.py"], "mpirun starts processes of its own, and here Trainmaster starts the ranks"),
        (["torchrun", "--virtual-local-rank", "t.py"], "torchrun --virtual-local-rank can't be obeyed"),
        (["torchrun", "--nproc-per-node=gpu", "t.py"], "say in workers.ranksPerPod how many ranks each pod has"),
        (["python", "-", "<", "t.py"], "python - reads its program from the standard input"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_way_to_launch_that_cannot_work_is_refused_by_name(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str], command: list[str], sentence: str
) -> None:
    (tmp_path / "t.py").touch()
    file = write_job(PYTORCH, **{CONTAINER: [{"name": "worker", "command": command}]})
    for verb in ("validate", "run"):
        (line,) = refused(capsys, verb, str(file))
        assert sentence in line


@pytest.mark.parametrize(
    ("container", "sentence"),
    [
        ({"command": ["python", "train.py"]}, "there is no script {here}/train.py"),
        ({"command": ["torchrun", "--nproc-per-node=1", "lost/train.py", "x.py"]}, "no script {here}/lost/train.py"),
        ({"command": ["python", "."]}, "{here} is a folder without a __main__.py, which Python would run"),
        ({"command": ["no-such-program"]}, "no program no-such-program is found"),
        ({"command": ["typo.py"]}, "typo.py is a file that is not executable; write [python, typo.py]"),
        ({"command": ["./typo.sh"]}, "typo.sh is a file that is not executable; `chmod +x {here}/typo.sh` makes it"),
        ({"command": ["python", "typo.py"]}, "{here}/typo.py, line 2: SyntaxError: invalid syntax"),
        (
            {"command": ["python", "$(WHERE)/train.py"], "env": [{"name": "WHERE", "value": "lost"}]},
            "there is no script {here}/lost/train.py",
        ),
        (
            {"command": ["ls"], "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            "env[0].valueFrom: secretKeyRef takes its value from a Secret, which only a cluster has; a value is "
            "expected for a local run",
        ),
        ({"command": ["ls"], "envFrom": [{"secretRef": {"name": "s"}}]}, "only a cluster has; env with values"),
        ({"command": ["ls"], "workingDir": "nowhere"}, "{here}/nowhere is not a folder"),
    ],
    ids=str,
)
def test_a_script_that_does_not_exist_is_refused(
    tmp_path: Path,
    write_job: WriteJob,
    capsys: pytest.CaptureFixture[str],
    container: dict[str, Any],
    sentence: str,
) -> None:
    for name in ("typo.py", "typo.sh"):
        (tmp_path / name).write_text("import os\nx = = 1\n")
    file = write_job(PYTORCH, **{CONTAINER: [{"name": "worker", **container}]})
    for command in ("validate", "run"):
        (line,) = refused(capsys, command, str(file))
        assert sentence.format(here=tmp_path.resolve()) in line
        assert line.endswith("; with --cluster it is not checked)") == (command == "validate")


def test_the_syntax_of_a_script_for_another_python_is_not_checked(tmp_path: Path, write_job: WriteJob) -> None:
    (tmp_path / "typo.py").write_text("x = = 1\n")
    other = tmp_path / "python"
    other.symlink_to("/bin/true")
    container = {"name": "worker", "command": [str(other), "typo.py"]}
    assert main(["validate", str(write_job(PYTORCH, **{CONTAINER: [container]}))]) == 0


@pytest.mark.parametrize(
    ("folder", "sentence"),
    [
        ("/proc/ckpt/a", "/proc/ckpt/a can't be created in /proc: no such file or directory; choose another folder"),
        (
            "texts.txt/a",
            "{here}/texts.txt/a can't be created in {here}/texts.txt: not a directory; choose another folder",
        ),
        ("/proc/self", "can't be written to: no such file or directory; choose another folder"),
    ],
)
def test_a_folder_to_which_no_checkpoint_can_be_written_is_refused(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str], folder: str, sentence: str
) -> None:
    (tmp_path / "texts.txt").touch()
    file = write_job(spec__checkpoint={"directory": folder})
    for command in ("validate", "run"):
        (line,) = refused(capsys, command, str(file))
        assert "spec.checkpoint.directory: " in line
        assert sentence.format(here=tmp_path.resolve()) in line


def test_a_program_is_looked_for_where_the_pods_of_a_run_find_it(
    tmp_path: Path, write_job: WriteJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the interpreter of the run, whose environment need not be activated, and in the PATH of the container."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    container: dict[str, Any] = {"name": "worker", "command": ["pytest"]}
    assert main(["validate", str(write_job(PYTORCH, **{CONTAINER: [container]}))]) == 0
    program = tmp_path / "tools" / "conda"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    container |= {"command": ["conda", "run"], "env": [{"name": "PATH", "value": f"{program.parent}:/bin"}]}
    assert main(["validate", str(write_job(PYTORCH, **{CONTAINER: [container]}))]) == 0


def test_a_folder_with_a_main_is_a_script(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").touch()
    file = write_job(PYTORCH, **{CONTAINER: [{"name": "worker", "command": ["torchrun", "app", "--x"]}]})
    assert main(["validate", str(file)]) == 0, capsys.readouterr().err


def test_what_is_missing_on_this_machine_is_told_beside_fields_that_are_wrong(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job(
        spec__workers__replicas=0,
        spec__training__data={"path": "nowhere"},
        spec__training__evaluation={"every": 5, "data": {"path": "lost", "options": {"glob": 3}}},
        spec__checkpoint={"resume": "gone"},
    )
    for command in ("validate", "run"):
        told = [line.partition(": ")[2] for line in refused(capsys, command, str(file))]
        assert [line.split(": ")[0] for line in told] == [
            "spec.workers.replicas",
            "spec.training.data.path",
            "spec.training.evaluation.data.options.glob",
            "spec.checkpoint.resume",
        ]


def test_folders_of_a_job_for_a_cluster_are_not_looked_for(
    write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job(spec__training__data={"path": "/only/there"}, spec__suspend=True)
    assert main(["validate", str(file), "--cluster"]) == 0
    assert "job tiny is valid (4 ranks)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("kil:step=3", "--fault 'kil:step=3': 'kil' is unknown; did you mean kill?"),
        ("kill:rank=1", "step is missing"),
        ("kill:rank=9,step=3", "the job has ranks 0 to 3, not 9"),
        ("kill:step=300", "the job has 100 steps, so it never reaches step 300"),
    ],
)
def test_a_fault_that_can_never_fire_is_refused(
    write_job: WriteJob, capsys: pytest.CaptureFixture[str], fault: str, sentence: str
) -> None:
    (line,) = refused(capsys, "run", str(write_job()), "--fault", fault)
    assert sentence in line


def test_a_port_in_use_is_refused(write_job: WriteJob, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (line,) = refused(capsys, "run", str(write_job()), "--port", str(port))
    assert (
        line
        == f"--port {port}: 127.0.0.1:{port} can't be used: address already in use; leave --port out to use a free port"
    )


def test_a_path_that_is_no_text_is_refused(write_job: WriteJob, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write_job(spec__training__data={"path": "a\0b"}))
    wanted = "a path in UTF-8 without null characters is expected"
    for command in ("validate", "run"):
        assert refused(capsys, command, file) == [f"'a\\x00b': {wanted}"]
    assert refused(capsys, "run", str(write_job()), "--out", os.fsdecode(b"\xff")) == [f"'\\udcff': {wanted}"]
    (line,) = refused(capsys, "init", os.fsdecode(b"\xff.yaml"))
    assert "must be text in UTF-8" in line


def test_an_output_folder_of_a_user_who_is_not_there_is_an_ordinary_folder(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "~nobody here").write_text("")
    (line,) = refused(capsys, "run", str(write_job()), "--out", "~nobody here/out")
    assert "~nobody here" in line


def test_a_port_that_is_none_is_refused(write_job: WriteJob, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = refused(capsys, "run", str(write_job()), "--port", "99999")
    assert "must be 0, for any free port, to 65535" in line


def put_status(out: Path, job_file: Path, phase: str = "Running", **changes: Any) -> None:
    """An output folder as a run of the job would have left it."""
    resource = yaml.safe_load(job_file.read_text())
    resource["metadata"] |= {"uid": "u-1", "creationTimestamp": "2026-01-01T00:00:00Z", **changes}
    resource["status"] = {"phase": phase, "round": {"number": 3}}
    out.mkdir(parents=True)
    (out / "status.yaml").write_text(yaml.safe_dump(resource))


def test_the_folder_of_another_job_is_refused(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job()
    put_status(tmp_path / "out", file, name="other")
    (line,) = refused(capsys, "run", str(file), "--out", "out")
    assert line == f"{tmp_path.resolve()}/out: is the output folder of job other, not of tiny; choose another --out"


def test_fresh_and_the_demo_do_not_delete_another_job(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job()
    put_status(tmp_path / "out", file, name="other")
    (tmp_path / "out" / "checkpoints").mkdir()
    words = f"{tmp_path.resolve()}/out: is the output folder of job other, not of"
    (line,) = refused(capsys, "run", str(file), "--out", "out", "--fresh")
    assert line == f"{words} tiny; choose another --out"
    assert main(["demo", "--out", "out"]) == 2
    assert words in capsys.readouterr().err
    assert (tmp_path / "out" / "checkpoints").is_dir()


def test_a_run_that_ends_while_the_next_one_starts_is_not_continued_from_what_it_was(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_job()
    put_status(tmp_path / "out", file, phase="Running")
    left, listen = tmp_path / "out" / "status.yaml", operator_address.listen

    def listen_after_the_end(port: int) -> socket.socket:
        left.write_text(left.read_text().replace("phase: Running", "phase: Succeeded"))
        return listen(port)

    monkeypatch.setattr(operator_address, "listen", listen_after_the_end)
    (line,) = refused(capsys, "run", str(file), "--out", "out")
    assert line.endswith("out: another run has used this folder in this moment; give the same command again")
    assert main(["run", str(file), "--out", "out"]) == 0
    assert "has succeeded already" in capsys.readouterr().out


def test_the_folder_of_the_same_job_with_other_data_or_seed_is_refused(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    put_status(tmp_path / "out", write_job())
    (line,) = refused(capsys, "run", str(write_job(spec__training__seed=7)), "--out", "out")
    assert "holds a run of job tiny with a different spec.training.seed (0, now 7)" in line
    assert "--fresh" in line


def test_fewer_steps_than_the_run_has_saved_are_refused(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job(spec__training__steps=7)
    put_status(tmp_path / "out", file, phase="Suspended")
    left = tmp_path / "out" / "status.yaml"
    resource = yaml.safe_load(left.read_text())
    resource["status"]["checkpoint"] = {"durable": {"step": 8, "round": 1}}
    left.write_text(yaml.safe_dump(resource))
    (line,) = refused(capsys, "run", str(file), "--out", "out")
    assert line.endswith(
        "out: its newest checkpoint has step 8, but spec.training.steps is now 7; choose more steps, choose another "
        "--out, or delete the old run with --fresh"
    )


def test_the_folder_of_a_run_of_an_earlier_version_is_refused(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job()
    put_status(tmp_path / "out", file)
    left = tmp_path / "out" / "status.yaml"
    left.write_text(yaml.safe_dump({**yaml.safe_load(left.read_text()), "status": former_status("Suspended")}))
    (line,) = refused(capsys, "run", str(file), "--out", "out")
    assert "holds a run of job tiny that another version of trainmaster wrote; choose another --out" in line
    for command in ("status", "report"):
        (line,) = refused(capsys, command, "out")
        assert line == (
            "tiny: NeedsMigration: an earlier version of trainmaster wrote its status, which this version doesn't "
            "read; its phase is Suspended"
        )


def test_a_folder_with_other_files_is_refused(write_job: WriteJob, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = refused(capsys, "run", str(write_job()), "--out", ".")
    assert "holds other files and no status.yaml" in line


def test_a_job_that_has_succeeded_is_left_alone(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job()
    put_status(tmp_path / "out", file, phase="Succeeded")
    before = (tmp_path / "out" / "status.yaml").read_text()
    assert main(["run", str(file), "--out", "out"]) == 0
    assert "job tiny has succeeded already; --fresh runs it again" in capsys.readouterr().out
    assert (tmp_path / "out" / "status.yaml").read_text() == before


def test_a_fault_for_a_run_that_has_succeeded_is_refused(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job()
    put_status(tmp_path / "out", file, phase="Succeeded")
    before = (tmp_path / "out" / "status.yaml").read_text()
    (line,) = refused(capsys, "run", str(file), "--out", "out", "--fault", "kill:rank=1,step=5")
    assert "--fault kill:rank=1,step=5: job tiny has succeeded already, so nothing in it can be broken" in line
    assert (tmp_path / "out" / "status.yaml").read_text() == before


def test_a_fault_in_a_step_that_was_saved_already_is_refused(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job()
    put_status(tmp_path / "out", file, phase="Suspended")
    left = tmp_path / "out" / "status.yaml"
    resource = yaml.safe_load(left.read_text())
    resource["status"]["checkpoint"] = {"durable": {"step": 8, "round": 1}}
    left.write_text(yaml.safe_dump(resource))
    faults = ("--fault", "kill:rank=1,step=8", "--fault", "kill:rank=1,step=9")
    (line,) = refused(capsys, "run", str(file), "--out", "out", *faults)
    assert "--fault kill:rank=1,step=8: the run continues after step 8, where its last checkpoint is" in line


def test_a_folder_without_a_run_has_no_report_and_no_status(
    tmp_path: Path, write_job: WriteJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    (tmp_path / "empty").mkdir()
    for command in ("report", "status"):
        (line,) = refused(capsys, command, "empty")
        assert "empty: holds no run" in line
    put_status(tmp_path / "runs" / "tiny", write_job())
    for command in ("report", "status", "logs", "profile"):
        (line,) = refused(capsys, command, "runs")
        assert line == "runs: holds no run; the output folder of a run is expected, such as runs/tiny"
    for command in ("report", "status"):
        nothing, cluster, hint = refused(capsys, command, "nowhere")
        assert nothing == (
            "nowhere: there is no run in nowhere or runs/nowhere, and no cluster on which it could be a job"
        )
        assert cluster.startswith("no kubeconfig: ")
        assert "`trainmaster validate` says what is wrong" in hint


def test_a_checkpoint_that_can_be_read_is_taken(tmp_path: Path, write_job: WriteJob) -> None:
    from trainmaster_operator.cli.job_files.validate_job import load_job
    from trainmaster_operator.cli.this_machine import local_run_checks

    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "manifest.json").write_text(json.dumps({"step": 3}))
    document, _ = load_job(write_job(spec__checkpoint={"resume": "good"}))
    localized = local_run_checks.localized(document.value, Path.cwd(), tmp_path / "out")
    assert localized["spec"]["checkpoint"] == {
        "resume": str(tmp_path.resolve() / "good"),
        "directory": str(tmp_path.resolve() / "out" / "checkpoints"),
    }


def test_the_tokenizer_of_a_table_is_looked_for_where_the_job_is(
    tmp_path: Path, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow
    import pyarrow.parquet

    from trainmaster_operator.cli.job_files.validate_job import load_job
    from trainmaster_operator.cli.this_machine import local_run_checks

    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "a.parquet")
    table = {"source": "parquet", "path": "a.parquet", "options": {"tokenizer": "gone.json"}}
    job, gone = write_job(spec__training__data=table), tmp_path.resolve() / "gone.json"
    for command in ("validate", "run"):
        (line,) = refused(capsys, command, str(job))
        assert f"spec.training.data.options.tokenizer: {gone} can't be read: No such file" in line
    document, _ = load_job(job)
    localized = local_run_checks.localized(document.value, Path.cwd(), tmp_path / "out")
    assert localized["spec"]["training"]["data"]["options"] == {"tokenizer": str(gone)}


def test_the_command_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: trainmaster ")
    assert "run a job on this machine" in out
    assert err == ""


def test_parity_into_a_folder_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", "--json", str(tmp_path / "none" / "table.json")]) == 2
    assert f"there is no folder {tmp_path / 'none'}" in capsys.readouterr().err
