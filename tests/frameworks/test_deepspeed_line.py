"""The line that starts a script with DeepSpeed's own launcher is the command of a job: what the script gets is the
same. The tables of its options are compared with DeepSpeed's parser."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import commands
from tests.frameworks import environments
from tests.frameworks.runs import LIMIT_S, SUBJECTS, Ended, job_of, run_job
from trainmaster.contract.launch import launcher_option_tables

pytestmark = [pytest.mark.framework, pytest.mark.processes]

# MASTER_PORT is another one in each run. DeepSpeed sets CUDA_VISIBLE_DEVICES to its list of slots, and in a cluster a
# pod's resources say which devices its ranks see.
TELLS = """
import json, os, sys
names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_SIZE CROSS_RANK CROSS_SIZE MASTER_ADDR".split()
print("got " + json.dumps([sys.argv[1:], {name: os.environ[name] for name in names}]), flush=True)
"""
PARSER = """
import argparse, json
from deepspeed.launcher import runner
def tell(parser, args=None):
    kept = [action for action in parser._actions if action.option_strings]
    print(json.dumps([[action.option_strings, action.nargs == 0] for action in kept]))
    raise SystemExit
argparse.ArgumentParser.parse_args = tell
runner.parse_args([])
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return environments.python_of("deepspeed")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "tells.py"
    path.write_text(TELLS)
    return path


def job(command: Sequence[str]) -> Mapping[str, Any]:
    """Return a job of one pod with two ranks and this command."""
    made = job_of(SUBJECTS["deepspeed"], [], {})
    workers = made["spec"]["workers"]
    workers["template"]["spec"]["containers"][0]["command"] = list(command)
    workers |= {"replicas": 1, "ranksPerPod": 2}
    return made


def told(text: str) -> list[Any]:
    """Return what each rank got, in the order of ranks."""
    got = [json.loads(line.partition("got ")[2]) for line in text.splitlines() if "got [" in line]
    return sorted(got, key=lambda each: int(each[1]["RANK"]))


def as_job(command: Sequence[str], python: Path, folder: Path) -> Ended:
    return run_job(job(command), python, folder / "job")


@pytest.mark.parametrize(
    "options",
    [
        ["--num_gpus=2"],
        ["--num_gpus", "2", "--no_local_rank", "--master_port=29871", "--quiet"],
        ["--num_accelerators=2", "--no_python", "--no_local_rank"],
    ],
    ids=" ".join,
)
def test_a_script_gets_the_same_from_its_launcher_and_in_a_job(
    tmp_path: Path, script: Path, python: Path, options: list[str]
) -> None:
    by_program = ["python"] if "--no_python" in options else []
    line = ["deepspeed", *options, *by_program, str(script), "--lr", "0.1"]
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    said = tmp_path / "said"
    code = commands.run(line, {"PATH": path, "DS_ACCELERATOR": "cpu"}, said, LIMIT_S)
    assert code == 0, said.read_text()
    ended = as_job(line, python, tmp_path)
    assert ended.exit_code == 0, ended.output
    expected = told(said.read_text())
    assert len(expected) == 2
    assert told(ended.log) == expected
    noted = "deepspeed --master_port has no effect: Trainmaster opens the rendezvous" in ended.log + ended.output
    assert noted is any(option.startswith("--master_port") for option in options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--hostfile=hosts"], "deepspeed --hostfile can't be obeyed, since the pods of spec.workers are the hosts"),
        (["--num_gpus=4"], "deepspeed --num_gpus=4, but workers.ranksPerPod is 2"),
    ],
)
def test_an_option_that_cannot_be_obeyed_ends_the_job_with_one_sentence(
    tmp_path: Path, script: Path, python: Path, options: list[str], sentence: str
) -> None:
    ended = as_job(["deepspeed", *options, str(script)], python, tmp_path)
    assert ended.exit_code != 0
    assert sentence in ended.output
    assert "Traceback" not in ended.output
    assert not (tmp_path / "job" / "out" / "logs").exists() or told(ended.log) == []


def test_the_tables_have_the_options_of_deepspeeds_parser(python: Path) -> None:
    said = subprocess.run([python, "-c", PARSER], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    flags, values = (
        set(launcher_option_tables._DEEPSPEED_FLAGS.split()),
        set(launcher_option_tables._DEEPSPEED_VALUES.split()),
    )
    unknown = []
    for words, is_flag in json.loads(said.stdout.splitlines()[-1]):
        for word in words:
            name = word[2:] if word.startswith("--") else launcher_option_tables._DEEPSPEED_SHORT.get(word[1:], "")
            if name not in (flags if is_flag else values):
                unknown.append((word, is_flag))
    assert unknown == []
