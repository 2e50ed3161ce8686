"""A soak tells what it has covered, and keeps what went wrong as a file that can be replayed."""

from __future__ import annotations

import os
import re

import pytest

from simulation.schedule_runs import exhaustive, soak
from simulation.schedule_runs.bug_search import find
from simulation.schedule_runs.minimise import minimise
from simulation.schedule_runs.schedule import Schedule
from simulation.schedule_runs.seeded_bugs import BUGS
from simulation.schedule_runs.simulated_run import Outcome, run_schedule

LAST_LINE = re.compile(
    r"(\d+) schedules, [\d.]+ schedules/s, [\d.]+ hours of virtual time, (\d+) state pairs, (\d+) violations"
)


def soaked(tmp_path, **how):
    said = []
    how = {"seconds": 0.0, "schedules": 6, "processes": 2, **how}
    done = soak.soak(folder=tmp_path / "found", tell=said.append, **how)
    match = LAST_LINE.fullmatch(said[-1])
    assert match, said
    return done, [int(number) for number in match.groups()], said


def test_all_that_was_asked_for_is_run_and_told_in_the_last_line(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "CHUNK", 4)
    _, (schedules, pairs, violations), _ = soaked(tmp_path)
    assert (schedules, violations) == (6, 0)
    assert pairs >= 2
    assert not (tmp_path / "found").exists()


def test_placements_in_small_jobs_are_told_apart(tmp_path, monkeypatch):
    place = exhaustive.places()[-1]
    monkeypatch.setattr(exhaustive, "places", lambda: [place])
    done, (schedules, _, violations), said = soaked(tmp_path, schedules=1, exhaustively=True)
    assert (schedules, violations) == (done.placed + 1, 0)
    assert done.placed > 1
    assert said[-2].startswith(f"{done.placed} placements of up to two faults")


def test_no_further_chunk_begins_when_the_time_is_over(tmp_path):
    done, _, _ = soaked(tmp_path, seconds=1e-6)
    assert done.schedules == 0


def test_what_goes_wrong_is_kept_small_and_replayable(tmp_path, monkeypatch):
    bug = next(bug for bug in BUGS if bug.name == "create a pod beside the old one")
    seed = find(bug, 10).schedules - 1

    def run(schedule: Schedule) -> Outcome:
        with bug.made() as policies:
            return run_schedule(schedule, policies)

    monkeypatch.setattr(soak, "run_schedule", run)  # before the workers are forked
    monkeypatch.setattr(soak, "minimise", lambda schedule, run: minimise(schedule, run, tries=8))
    done, (_, _, violations), said = soaked(tmp_path, schedules=1, first=seed)
    assert violations == len(done.bad) == 1
    (file,) = (tmp_path / "found").iterdir()
    assert any(str(file) in line for line in said)
    kept = Schedule.from_json(file.read_text())
    assert run(kept).violations


def test_what_goes_wrong_in_a_process_of_the_soak_alone_is_kept_as_it_is(tmp_path, monkeypatch):
    parent = os.getpid()

    def run(schedule: Schedule) -> Outcome:
        outcome = run_schedule(schedule)
        if os.getpid() != parent:
            outcome.violations.append("not the same run in each process")
        return outcome

    monkeypatch.setattr(soak, "run_schedule", run)
    done, (_, _, violations), said = soaked(tmp_path, schedules=1, first=720)
    assert violations == len(done.bad) == 1
    (file,) = (tmp_path / "found").iterdir()
    assert Schedule.from_json(file.read_text()) == Schedule.of_seed(720)
    assert "seed 720: it went wrong in a process of the soak, and breaks no promise here" in said


@pytest.mark.parametrize(("bad", "code"), [([], 0), ([Schedule("a")], 1)])
def test_a_violation_is_the_exit_code(monkeypatch, tmp_path, bad, code):
    monkeypatch.setattr(soak, "soak", lambda **_: soak.Done(schedules=1, bad=bad))
    assert soak.main(1.0, 1, 0, False, 1, tmp_path) == code
