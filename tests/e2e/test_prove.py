"""`trainmaster prove` with real runs: scripts that have all their states kept, and scripts that forget one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.harness import LIMIT_S, script_job, small_demo_job, started
from tests.e2e.warm import COMMAND

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).parent / "scripts" / "forgetful.py"


def job(folder: Path, forget: str, replicas: int = 1) -> Path:
    return script_job(folder, ["python", str(SCRIPT), "--forget", forget], "forgetful", replicas)


def prove(path: Path, *arguments: str) -> tuple[int, str]:
    """The exit code, and what it said at last."""
    command = [
        sys.executable,
        "-m",
        COMMAND,
        "prove",
        str(path),
        "--plain",
        "--out",
        str(path.parent / "out"),
        *arguments,
    ]
    with started(command) as process:
        output, _ = process.communicate(timeout=2 * LIMIT_S)
        return process.wait(), output


def test_a_script_that_keeps_all_its_states_is_proven(tmp_path: Path) -> None:
    code, said = prove(job(tmp_path, "nothing", replicas=2), "--kills", "1", "--seed", "1")
    assert code == 0, said
    assert "Proven: 2 ranks, 14 steps, 1 kill. The losses are those of the undisturbed run, bit for bit" in said


def test_our_own_loop_is_proven(tmp_path: Path) -> None:
    code, said = prove(small_demo_job(tmp_path, 2, {"dpShard": 2}, 24), "--seed", "2")
    assert code == 0, said
    assert "Proven: 2 ranks, 24 steps, 3 kills." in said


@pytest.mark.parametrize(
    ("forget", "sentence"),
    [
        ("scheduler", "scheduler (a CosineAnnealingLR) is not in tm.State"),
        ("generator", "noise (a Generator) is not in tm.State"),
        ("loader", "perhaps batches (a _SingleProcessDataLoaderIter): it has a position"),
    ],
)
def test_a_forgotten_state_is_named_with_the_first_step_that_differs(
    tmp_path: Path, forget: str, sentence: str
) -> None:
    code, said = prove(job(tmp_path, forget), "--kills", "1", "--seed", "3")
    assert code == 1, said
    assert "is the first that differs; its round had resumed after step" in said
    assert sentence in said


def test_a_script_without_seeds_is_told_apart_from_one_that_forgets(tmp_path: Path) -> None:
    code, said = prove(job(tmp_path, "seed"), "--kills", "1")
    assert code == 1, said
    assert "before the first kill" in said
    assert "different from the start: model, random_generators.numpy, random_generators.python" in said


def test_what_cannot_be_compared_is_bad_input(tmp_path: Path) -> None:
    path = job(tmp_path, "nothing")
    document = yaml.safe_load(path.read_text())
    container = document["spec"]["workers"]["template"]["spec"]["containers"][0]
    container["command"] = ["python", "-c", "print('nothing')"]
    path.write_text(yaml.safe_dump(document))
    code, said = prove(path)
    assert code == 2, said
    assert "it needs `run = tm.init()`" in said
    container["command"] = ["python", "-c", "raise SystemExit(65)"]
    path.write_text(yaml.safe_dump(document))
    code, said = prove(path)
    assert code == 2, said
    assert "fails without any kill" in said
    assert prove(path, "--kills", "0")[0] == 2
    assert prove(tmp_path / "missing.yaml")[0] == 2
