"""A schedule is made smaller only as long as it breaks the same promise."""

from __future__ import annotations

from simulation.schedule_runs.minimise import minimise
from simulation.schedule_runs.schedule import Schedule
from simulation.schedule_runs.simulated_run import Outcome
from trainmaster_operator.planning.facts.job_state import JobState


def test_a_schedule_that_breaks_no_promise_is_run_once_and_stays_as_it_is() -> None:
    tried: list[Schedule] = []

    def run(schedule: Schedule) -> Outcome:
        tried.append(schedule)
        return Outcome(violations=[], noted=[], status=JobState(), exists=True, writes=0, seconds=0.0)

    schedule = Schedule.of_seed(720)
    assert minimise(schedule, run) == schedule
    assert tried == [schedule]
