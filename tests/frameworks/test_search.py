"""Trainer's search with Optuna loses a rank in its second trial, and goes on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.frameworks import environments
from tests.frameworks.runs import EXAMPLES, Ended, Subject, job_of, run_job

pytestmark = [pytest.mark.framework, pytest.mark.processes]

TRIALS, STEPS = 3, 20
SEARCH = Subject("HuggingFace", "huggingface", "huggingface_search.py", ("--steps", str(STEPS)))
READ = """
import json, sys
import optuna
(name,) = optuna.get_all_study_names(sys.argv[1])
trials = optuna.load_study(study_name=name, storage=sys.argv[1]).trials
print(json.dumps([[trial.state.name, trial.params, trial.value] for trial in trials]))
"""


class Trial(NamedTuple):
    state: str
    parameters: dict[str, Any]
    value: float | None


def search(folder: Path, *faults: str) -> tuple[Ended, list[Trial]]:
    """Run the example to its end, and return the trials of its study too."""
    python = environments.python_of(SEARCH.environment)
    saved = folder / "saved"
    script = [str(EXAMPLES / SEARCH.script), "--folder", str(saved), "--trials", str(TRIALS), *SEARCH.length]
    ended = run_job(job_of(SEARCH, script, {}), python, folder, faults)
    assert ended.exit_code == 0, ended.output
    words = [str(python), "-c", READ, f"sqlite:///{saved}/study.db"]
    read = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120).stdout
    return ended, [Trial(*each) for each in json.loads(read.splitlines()[-1])]


def test_the_steps_of_all_trials_are_counted(tmp_path: Path) -> None:
    ended, trials = search(tmp_path)
    assert [trial.state for trial in trials] == ["COMPLETE"] * TRIALS
    assert ended.status["progress"]["step"] == TRIALS * STEPS
    assert "recoveries" not in ended.status


def test_a_rank_that_is_killed_in_a_later_trial_is_back_and_the_search_goes_on(tmp_path: Path) -> None:
    ended, trials = search(tmp_path, f"kill:rank=1,step={STEPS + STEPS // 2 + 2}")
    assert [trial.state for trial in trials] == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert trials[2].parameters == trials[1].parameters, "the trial that was cut off is tried again"
    (recovery,) = ended.status["recoveries"]
    assert recovery["rung"] == "inPlace"
    assert len(ended.pids) == 4, "two ranks, twice"
    folders = sorted(path.parent.name for path in (tmp_path / "saved").glob(f"run-*/checkpoint-{STEPS}"))
    assert folders == ["run-0", "run-2", "run-3"], "no trial takes the checkpoints of another"
    assert (tmp_path / "saved" / "run-1" / f"checkpoint-{STEPS // 2}").is_dir(), "where the rank was killed"
