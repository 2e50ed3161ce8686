"""The line that starts a script with horovodrun is the command of a job: what the script gets is the same. The tables
of its options are compared with the parser of Horovod, and the variables with those that Horovod makes."""

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
from tests.frameworks.runs import LIMIT_S, SUBJECTS, job_of, run_job
from trainmaster.contract.launch import horovodrun_options, parse

pytestmark = [pytest.mark.framework, pytest.mark.processes]

# HOROVOD_HOSTNAME and the rendezvous are other ones: they are those of the round.
TELLS = """
import json, os, sys
places = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE CONTROLLER CPU_OPERATIONS CYCLE_TIME LOG_LEVEL".split()
print("got " + json.dumps([sys.argv[1:], {name: os.environ["HOROVOD_" + name] for name in places}]), flush=True)
"""
PARSER = """
import argparse, json
from horovod.runner import launch
def tell(parser, args=None):
    kept = [action for action in parser._actions if action.option_strings]
    print(json.dumps([[action.option_strings, action.nargs == 0] for action in kept]))
    raise SystemExit
argparse.ArgumentParser.parse_args = tell
launch.parse_args()
"""
MADE = """
import json, sys
from horovod.runner import launch
from horovod.runner.common.util import config_parser
sys.argv = ["horovodrun", *json.loads(sys.argv[1])]
print(json.dumps(config_parser.set_env_from_args({}, launch.parse_args())))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return environments.python_of("horovod")


def ask(python: Path, program: str, *words: str) -> Any:
    done = subprocess.run([python, "-c", program, *words], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def told(text: str) -> list[Any]:
    """Return what each rank got, in the order of ranks."""
    got = [json.loads(line.partition("got ")[2]) for line in text.splitlines() if "got [" in line]
    return sorted(got, key=lambda each: int(each[1]["RANK"]))


def job(command: Sequence[str]) -> Mapping[str, Any]:
    """Return a job of one pod with two ranks and this command."""
    made = job_of(SUBJECTS["horovod"], [], {})
    workers = made["spec"]["workers"]
    workers["template"]["spec"]["containers"][0]["command"] = list(command)
    workers |= {"replicas": 1, "ranksPerPod": 2}
    return made


def test_a_script_gets_the_same_from_horovodrun_and_in_a_job(tmp_path: Path, python: Path) -> None:
    script, said = tmp_path / "tells.py", tmp_path / "said"
    script.write_text(TELLS)
    options = ["--gloo", "--cycle-time-ms", "3", "--log-level=ERROR", "--start-timeout=60"]
    line = ["horovodrun", "-np", "2", *options, "python", str(script), "--lr", "0.1"]
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    code = commands.run(line, {"PATH": path}, said, LIMIT_S)
    assert code == 0, said.read_text()
    ended = run_job(job(line), python, tmp_path / "job")
    assert ended.exit_code == 0, ended.output
    expected = told(said.read_text())
    assert len(expected) == 2
    assert told(ended.log) == expected
    assert "horovodrun --start-timeout has no effect: no launcher's processes run" in ended.log + ended.output


def test_the_tables_have_the_options_of_horovods_parser(python: Path) -> None:
    flags, values, short = set(horovodrun_options.FLAGS), set(horovodrun_options.VALUES), horovodrun_options.SHORT
    unknown = []
    for words, is_flag in ask(python, PARSER):
        for word in words:
            name = word[2:].replace("-", "_") if word.startswith("--") else short.get(word[1:], "")
            if name not in (flags if is_flag else values):
                unknown.append((word, is_flag))
    assert unknown == []


@pytest.mark.parametrize(
    "line",
    [
        "--fusion-threshold-mb 32 --cycle-time-ms 3.5 --cache-capacity=0 --hierarchical-allreduce --log-level FATAL",
        "--no-hierarchical-allgather --torus-allreduce --tcp --num-nccl-streams 2 --thread-affinity 1",
        "--gloo-timeout-seconds 60 --mpi-threads-disable --no-log-hide-timestamp --stall-check",
        "--no-stall-check --stall-check-warning-time-seconds 5 --stall-check-shutdown-time-seconds 9",
        "--autotune --autotune-log-file f --autotune-warmup-samples 1 --autotune-steps-per-sample 2 --autotune"
        "-bayes-opt-max-samples 3 --autotune-gaussian-process-noise 0.5 --log-without-timestamp",
        "--autotune-log-file f --timeline-mark-cycles --no-autotune --no-mpi-threads-disable",
        "--timeline-filename t.json --timeline-mark-cycles --log-with-timestamp --no-torus-allreduce",
        "--timeline-filename t.json --no-timeline-mark-cycles --hierarchical-allgather --no-hierarchical-allreduce",
    ],
)
def test_options_become_the_variables_that_horovod_makes_of_them(python: Path, line: str) -> None:
    words = ["-np", "2", *line.split(), "python", "t.py"]
    assert parse(["horovodrun", *words]).environment == ask(python, MADE, json.dumps(words))
