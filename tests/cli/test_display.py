"""What a person sees: news between two statuses, plain lines, the live picture, the summary at the end."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.cli.runs import CLOSED, CRASH, RECOVERY, SUCCEEDED, status
from trainmaster_operator.cli.display import pod_rows
from trainmaster_operator.cli.display.live_display import choose, picture, summary
from trainmaster_operator.cli.display.number_words import clock, memory, rate, remaining, seconds
from trainmaster_operator.cli.display.piece_of_news import News, Tone
from trainmaster_operator.cli.display.plain_display import PlainDisplay, describe
from trainmaster_operator.cli.display.rank_rows import step_of
from trainmaster_operator.cli.display.recovery_tables import actions
from trainmaster_operator.cli.display.scenes import Scene
from trainmaster_operator.cli.display.status_diff import OperatorBack, news
from trainmaster_operator.planning.facts.job_state import (
    CheckpointStatus,
    Condition,
    JobPhase,
    JobState,
    Pause,
    Rung,
    Suspicion,
)
from trainmaster_operator.planning.facts.observation import PodRecord
from trainmaster_operator.planning.facts.timestamps import rfc3339


def told(old: JobState, new: JobState) -> list[str]:
    return [f"{piece.word}: {piece.text}" for piece in news(old, new)]


def test_a_failure_and_its_recovery_are_told_as_they_happen() -> None:
    running = status()
    failed = status(JobPhase.RECOVERING, round=2, lastFailure=CRASH, recoveries=[RECOVERY])
    again = failed.model_copy(update={"phase": JobPhase.RUNNING, "recoveries": [CLOSED]})
    assert told(running, failed) == [
        "failure: rank 2: Crash after step 59: killed by SIGKILL",
        "recovery: round 2: the ranks restart in place",
    ]
    assert told(failed, again) == [
        "recovered: training goes on in round 2, 287 ms after the failure; it continues after step 50, and 9 steps "
        "must be done again",
        "running: from step 60",
    ]
    assert told(again, again) == []


def test_a_recovery_that_the_end_of_the_job_overtook_is_not_told_as_one_that_steps_again() -> None:
    failed = status(JobPhase.RECOVERING, round=2, lastFailure=CRASH, recoveries=[RECOVERY])
    overtaken = RECOVERY.model_copy(update={"totalSeconds": 84.0, "overtaken": True})
    ended = failed.model_copy(update={"phase": JobPhase.SUCCEEDED, "recoveries": [overtaken]})
    assert told(failed, ended) == ["succeeded: step 60, loss 2.5000"]


@pytest.mark.parametrize(
    ("last_save", "words"),
    [
        (0, "60 steps since the last restart; the step where that restart began is not known, loss 2.5000"),
        (50, "step 60, loss 2.5000"),
    ],
)
def test_a_script_that_does_not_tell_where_it_went_on_ends_at_no_known_step(last_save: int, words: str) -> None:
    again = CLOSED.model_copy(update={"resumedStep": None, "lostSteps": None})
    running = status(round=2, lastFailure=CRASH, recoveries=[again])
    running.progress.lastSave = last_save
    assert told(running, running.model_copy(update={"phase": JobPhase.SUCCEEDED})) == [f"succeeded: {words}"]


def test_a_script_that_does_not_tell_where_it_went_on_runs_from_no_known_step() -> None:
    again = CLOSED.model_copy(update={"resumedStep": None, "lostSteps": None})
    running = status(round=2, lastFailure=CRASH, recoveries=[again])
    recovering = running.model_copy(update={"phase": JobPhase.RECOVERING})
    assert told(recovering, running) == [
        "running: steps are counted again from the restart; the step where it began is not known"
    ]


def test_a_job_of_which_no_step_is_known_stops_after_none() -> None:
    without = status(step=0)
    stopping = without.model_copy(update={"phase": JobPhase.SUSPENDING, "stopAt": 2})
    assert told(without, stopping) == ["stopping: all ranks stop soon"]


def test_a_script_that_is_stopped_is_asked_to_and_not_said_to_stop_after_a_step() -> None:
    stopping, asked = (
        status(JobPhase.SUSPENDING, stopAt=70),
        "your script is asked to stop: with run.steps() it saves and",
    )
    (piece,) = news(status(), stopping, scripted=True)
    assert piece.text == f"{asked} stops after step 70 or soon after, otherwise it gets SIGTERM"
    (unknown,) = news(JobState(), JobState(phase=JobPhase.SUSPENDING, stopAt=2), scripted=True)
    assert unknown.text == f"{asked} stops soon, otherwise it gets SIGTERM"


def test_a_script_that_was_stopped_is_told_with_its_last_torch_save() -> None:
    stopped = status(JobPhase.SUSPENDED)
    stopped.progress.lastSave = 50
    assert told(status(), stopped) == [
        "suspended: all ranks have ended; the script's last torch.save was after step 50"
    ]


def test_a_script_that_fails_between_two_steps_failed_after_the_one_that_is_known() -> None:
    """Its optimizer is all that is watched: the rest of a step comes after `optimizer.step()`."""
    progress = status().progress.model_copy(update={"totalSteps": 0})
    assert told(status(), status(progress=progress, lastFailure=CRASH)) == [
        "failure: rank 2: Crash after step 59: killed by SIGKILL"
    ]


def test_a_job_of_which_no_step_is_known_succeeds_after_none() -> None:
    ended = JobState(phase=JobPhase.SUCCEEDED)
    assert told(JobState(phase=JobPhase.STARTING), ended) == ["succeeded: no step is known"]
    console = Console(file=io.StringIO(), width=80)
    summary(Scene("evaluate", 2, "out", None, ended), console)
    assert console.file.getvalue().strip() == "Succeeded   no step is known   0 restarts"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("phase", "step"), [(JobPhase.RUNNING, 60), (JobPhase.RECOVERING, 12), (JobPhase.STARTING, 12)]
)
def test_ranks_that_count_from_0_in_each_process_do_not_take_the_step_of_the_job_back(
    phase: JobPhase, step: int
) -> None:
    assert step_of(status(phase, step=60, roundLastSave=48), [{"step": 12}, {"step": 11}]) == step


@pytest.mark.parametrize(
    ("goodput", "lost", "words"),
    [
        ("0.78", {"Evaluation": 6.2, "Checkpoint": 0.4}, "goodput 0.78 (evaluation 6.2 s)"),
        ("0.60", {"Evaluation": 6.2, "Crash": 9.4}, "goodput 0.60 (Crash 9.4 s)"),
        ("0.95", {"Evaluation": 6.2}, "goodput 0.95"),
        ("0.00", {}, "goodput 0.00"),
    ],
)
def test_a_low_goodput_names_what_lost_most(goodput: str, lost: dict[str, float], words: str) -> None:
    console = Console(file=io.StringIO(), width=80)
    summary(Scene("tiny", 4, "out", 100, status(JobPhase.SUCCEEDED, goodput=goodput, lost=lost)), console)
    assert f"   {words}   0 restarts" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_recovery_from_a_hang_is_measured_from_the_last_step() -> None:
    hang = CLOSED.model_copy(update={"cause": "Hang"})
    line = told(status(), status(recoveries=[hang]))[1]
    assert line.startswith("recovered: training goes on in round 2, 287 ms after its last step; ")


def test_a_recovery_that_began_and_ended_unseen_is_told_whole() -> None:
    words = told(status(), status(recoveries=[CLOSED], lastFailure=CRASH))
    assert [word.split(":")[0] for word in words] == ["failure", "recovery", "recovered"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"message": "bad luck", "signal": "", "exitCode": 3}, "rank 2: Crash after step 59: exit code 3: bad luck"),
        ({"message": "", "rank": None}, "tiny-worker-2-0: Crash after step 59: SIGKILL"),
        ({"step": 0}, "rank 2: Crash before any completed step was seen: killed by SIGKILL"),
        ({"step": 0, "cause": "CheckpointFailed"}, "rank 2: CheckpointFailed after step 0: killed by SIGKILL"),
        ({"message": "first\nsecond"}, "rank 2: Crash after step 59: SIGKILL: first"),
        ({"step": 99}, "rank 2: Crash after step 99: killed by SIGKILL"),
        ({"step": 100}, "rank 2: Crash after step 100: killed by SIGKILL"),
    ],
)
def test_a_failure_is_one_line(changes: dict[str, Any], text: str) -> None:
    assert told(status(), status(lastFailure=CRASH.model_copy(update=changes))) == [f"failure: {text}"]


@pytest.mark.parametrize("rung", list(Rung))
def test_every_answer_to_a_failure_has_words(rung: Rung) -> None:
    (line,) = told(status(), status(recoveries=[RECOVERY.model_copy(update={"rung": rung})]))
    assert line.startswith("recovery: round 2: ")


def test_a_job_that_waits_for_a_person_says_why_and_for_what() -> None:
    held = Condition(
        type="Held", status="True", reason="Crash", message="rank 2: odd; suspend and resume the job to continue it"
    )
    assert told(status(), status(JobPhase.HELD, conditions=[held])) == [f"held: {held.message}"]


def test_a_long_message_is_cut() -> None:
    (line,) = told(status(), status(lastFailure=CRASH.model_copy(update={"message": "x" * 4000})))
    assert len(line) < 250
    assert line.endswith("...")


ADVISED = CRASH.model_copy(update={"message": "the same failure came 3 times. " * 25 + "Add the rule {action: Fail}"})


def test_the_message_of_the_failure_that_ends_a_job_is_told_once_and_whole() -> None:
    cut = Condition(type="Failed", status="True", reason="Crash", message=ADVISED.message[:512])
    assert told(status(), status(JobPhase.FAILED, lastFailure=ADVISED, conditions=[cut])) == [
        "failure: rank 2: Crash after step 59: SIGKILL",
        f"failed: rank 2: {ADVISED.message}",
    ]


def test_the_failure_that_ends_a_job_is_told_with_its_exception() -> None:
    ended = ADVISED.model_copy(update={"signal": "", "exitCode": 1, "traceback": "  File\nValueError: bad label\n"})
    line = told(status(), status(JobPhase.FAILED, lastFailure=ended))[0]
    assert line == "failure: rank 2: Crash after step 59: exit code 1: ValueError: bad label"


@pytest.mark.parametrize(("cause", "kind"), [("Hang", "stack"), ("Crash", "traceback")])
def test_a_traceback_at_the_end_has_a_heading(cause: str, kind: str) -> None:
    console = Console(file=io.StringIO(), width=80)
    failure = CRASH.model_copy(update={"cause": cause, "traceback": '  File "bad.py", line 32, in <module>\n'})
    summary(Scene("tiny", 4, "out", 100, status(JobPhase.FAILED, lastFailure=failure)), console)
    assert isinstance(console.file, io.StringIO)
    expected = f'The {kind} of rank 2, which failed first:\n    File "bad.py", line 32, in <module>\n'
    assert expected in console.file.getvalue()


def test_checkpoints_and_the_end_are_told() -> None:
    saved = CheckpointStatus(step=50, round=1)
    assert told(status(), status(checkpoint=saved)) == ["checkpoint: step 50 is saved"]
    assert told(status(), status(JobPhase.SUCCEEDED, step=100)) == ["succeeded: step 100, loss 2.5000"]
    assert told(status(), status(JobPhase.SUSPENDED, checkpoint=saved))[-1] == "suspended: saved at step 50"


@pytest.mark.parametrize(
    ("stop_at", "words"), [(70, "after step 70 or soon after"), (165, "after step 100, the last one")]
)
def test_a_stop_is_never_told_beyond_the_last_step(stop_at: int, words: str) -> None:
    assert told(status(), status(JobPhase.SUSPENDING, stopAt=stop_at)) == [f"stopping: all ranks stop {words}"]
    assert told(status(), status(JobPhase.RESIZING, stopAt=stop_at)) == [f"resizing: all ranks stop {words}"]


def test_the_steps_lost_are_those_between_the_step_reached_and_the_one_resumed() -> None:
    (row,) = actions([CLOSED]).rows
    cells = dict(zip(actions([CLOSED]).header, row, strict=True))
    assert (cells["reached"], cells["resumed"], cells["source"], cells["steps lost"]) == ("59", "50", "peer", "9")


def test_a_script_of_which_no_step_is_known_ends_without_one() -> None:
    running = JobState(phase=JobPhase.RUNNING)
    assert told(running, JobState(phase=JobPhase.SUCCEEDED)) == ["succeeded: no step is known"]


def test_a_stopped_script_is_not_said_to_have_saved_nothing() -> None:
    stopping = JobState(phase=JobPhase.SUSPENDING)
    assert told(stopping, JobState(phase=JobPhase.SUSPENDED)) == ["suspended: all ranks have ended"]


def test_an_operator_that_is_back_is_told_once_when_ranks_report_to_it() -> None:
    back = OperatorBack()
    assert back.seen(0, [1]) is None
    assert back.seen(1, []) is None
    assert back.seen(1, [1]) == News("operator", "the operator is back: ranks report to it again", Tone.GOOD)
    assert back.seen(1, [1]) is None
    assert back.seen(3, [1]) is not None


def test_the_clock_of_the_feed_is_carried_into_minutes() -> None:
    assert [clock(s) for s in (0.04, 59.94, 59.96, 119.96, 6000)] == [
        "00:00.0",
        "00:59.9",
        "01:00.0",
        "02:00.0",
        "100:00.0",
    ]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_are_few_and_steady() -> None:
    scene, stream, clock = Scene("tiny", 4, "runs/tiny", 100), io.StringIO(), Clock()
    display = PlainDisplay(scene, stream, clock)
    display.start()
    for tenth in range(1000):
        clock.now = 100 + tenth / 10
        scene.status = status(step=tenth // 10)
        if tenth == 500:
            display.tell(News("failure", "rank 2: Crash"))
        display.draw()
    display.stop()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "00:00.0  job         tiny: 4 ranks, output in runs/tiny"
    assert "00:50.0  failure     rank 2: Crash" in lines
    steps = [line for line in lines if "  step  " in line]
    assert 15 <= len(steps) <= 21
    assert steps[0] == "00:05.0  step        5/100  loss 2.5000  12.3k tokens/s  ETA 1:35"


def test_plain_lines_say_nothing_while_nothing_moves() -> None:
    scene, stream, clock = Scene("tiny", 4, "runs/tiny", 100), io.StringIO(), Clock()
    display = PlainDisplay(scene, stream, clock)
    scene.status = status(JobPhase.RECOVERING)
    for _ in range(100):
        clock.now += 10
        display.draw()
    assert stream.getvalue() == ""


STEPPED_AT = 1_700_000_000.0


def stands_still(seconds: float, **fields: Any) -> Scene:
    """A job whose last step, of 140 ms each, was so many seconds ago; it had lost nothing until then."""
    job = status(**{"pauses": {"step": Pause(count=60, typical=0.14, longest=0.2)}, **fields})
    job.progress.updatedAt = job.accountedAt = rfc3339(STEPPED_AT)
    job.usefulSeconds, job.goodput = 8.4, "1.00"
    return Scene("tiny", 2, "out", 100, job, wall=lambda: STEPPED_AT + seconds)


def test_a_job_that_makes_no_step_says_so_and_shows_no_rate() -> None:
    scene = stands_still(26.0)
    assert describe(scene) == "60/100  loss 2.5000  no step for 26.0 s (usually 140 ms)"
    shown = drawn(picture(scene, 42.0))
    assert "no step for 26.0 s (usually 140 ms)" in shown
    assert "tokens/s" not in shown
    assert "ETA" not in shown


def test_the_goodput_of_a_job_that_makes_no_step_falls() -> None:
    console = Console(file=io.StringIO(), width=110)
    summary(stands_still(33.6), console)
    assert isinstance(console.file, io.StringIO)
    assert "goodput 0.20" in console.file.getvalue()


@pytest.mark.parametrize(
    "scene",
    [
        stands_still(9.0),
        stands_still(26.0, phase=JobPhase.RECOVERING),
        stands_still(26.0, pauses={"step": Pause(count=60, typical=3.0, longest=4.0)}),  # A step may take so long.
        replace(stands_still(26.0), goes_on=False),
        replace(stands_still(26.0), namespace="team-a"),  # The clock of the cluster may differ.
    ],
)
def test_a_job_that_steps_as_usual_or_does_not_train_is_not_said_to_stand_still(scene: Scene) -> None:
    assert "no step for" not in describe(scene)


def test_plain_lines_say_that_no_step_is_made_each_time_when_it_has_lasted_twice_as_long() -> None:
    scene, stream, clock = stands_still(0.0), io.StringIO(), Clock()
    scene.wall = lambda: STEPPED_AT + clock.now - 100
    display = PlainDisplay(scene, stream, clock)
    for second in range(60):
        clock.now = 100.0 + second
        display.draw()
    lines = [line for line in stream.getvalue().splitlines() if "waiting" in line]
    assert lines == [
        "00:10.0  waiting     no step for 10.0 s (usually 140 ms)",
        "00:20.0  waiting     no step for 20.0 s (usually 140 ms)",
        "00:40.0  waiting     no step for 40.0 s (usually 140 ms)",
    ]


def test_a_suspicion_is_told_when_it_is_raised_and_when_the_ranks_go_on() -> None:
    suspicion = Suspicion(round=1, rank=0, slot=0, message="rank 0 has been silent for 30.5 s")
    suspected = status(suspicion=suspicion)
    assert told(status(), suspected) == ["hang?: rank 0 has been silent for 30.5 s"]
    assert told(suspected, suspected) == []
    assert told(suspected, status()) == ["no hang: the ranks report again, so they did not hang"]
    over = status(JobPhase.RECOVERING, round=2)
    assert told(suspected, over) == []


def test_what_is_no_terminal_gets_plain_lines() -> None:
    assert isinstance(choose(Scene("tiny", 4, "out"), plain=False, stream=io.StringIO()), PlainDisplay)


def rank(number: int, **fields: Any) -> dict[str, Any]:
    base = {"rank": number, "slot": number, "incarnation": 0, "pid": 100 + number, "state": "running", "phase": "STEP"}
    return {**base, "step": 60, "loss": 2.5, "silent_s": 0.1, "rss_bytes": 512 * 2**20, **fields}


def drawn(renderable: Any, width: int = 110) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_picture_shows_state_progress_and_every_rank() -> None:
    ranks = [rank(0), rank(1, state="stopped", silent_s=12.0), rank(2, phase="LOAD", loss=None)]
    scene = Scene("tiny", 3, "out", 100, status(checkpoint=CheckpointStatus(step=50, round=1)), ranks)
    text = drawn(picture(scene, 42.0))
    for words in ("Running", "step 60/100", "loss 2.5000", "12.3k tokens/s", "ETA 1:35", "saved 50"):
        assert words in text
    lines = text.splitlines()
    assert any("tiny-worker-1-0" in line and "stopped" in line and "12.0 s" in line for line in lines)
    assert any("tiny-worker-2-0" in line and "load" in line for line in lines)
    assert "512 MiB" in text


def test_the_picture_of_many_ranks_stays_small() -> None:
    text = drawn(picture(Scene("tiny", 500, "out", 100, status(), [rank(i) for i in range(500)]), 1.0))
    assert "and 484 more ranks" in text
    assert len(text.splitlines()) < 30


def test_the_picture_stands_before_anything_is_known() -> None:
    assert "Pending" in drawn(picture(Scene("tiny", 4, "out"), 0.0))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_summary_has_the_recoveries_and_their_clock(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    summary(Scene("tiny", 4, "out", 100, SUCCEEDED), console, "out/report.html")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "Succeeded" in text
    assert "out/report.html" in text
    if width >= 80:
        assert "Crash of rank 2" in text
        assert "restart in place" in text
        assert "287 ms" in text
        assert "rendezvous" in text
        assert "1 restart" in text


def test_the_summary_names_the_rank_that_came_nearest_to_its_limit() -> None:
    console = Console(file=io.StringIO(), width=100)
    scene = Scene("tiny", 4, "out", 100, SUCCEEDED, memory="Rank 1 came nearest to its limit.")
    summary(scene, console, "out/report.html")
    assert isinstance(console.file, io.StringIO)
    assert "Rank 1 came nearest to its limit.\nReport:" in console.file.getvalue()


def test_a_failed_job_ends_with_its_traceback() -> None:
    console = Console(file=io.StringIO(), width=80)
    failure = CRASH.model_copy(update={"traceback": "Traceback [most recent]\nValueError: [42]"})
    summary(Scene("tiny", 4, "out", 100, status(JobPhase.FAILED, lastFailure=failure)), console, "r")
    assert isinstance(console.file, io.StringIO)
    assert "ValueError: [42]" in console.file.getvalue()


def test_amounts_are_short() -> None:
    assert [seconds(v) for v in (None, 0.1234, 12.34, 3723)] == ["-", "123 ms", "12.3 s", "1:02:03"]
    assert [remaining(v) for v in (12.34, 95.3, 4000)] == ["12 s", "1:35", "1:06:40"]
    assert [rate(v) for v in (0.5, 999, 12_345, 2.5e6)] == ["0.5", "999", "12.3k", "2.5M"]
    assert [memory(v) for v in (12, 512 * 2**20, 1010 * 2**20, 3 * 2**30)] == ["12 B", "512 MiB", "1010 MiB", "3 GiB"]


LONG = "a-very-long-name-of-a-job-that-somebody-gave-it-in-the-year-2026"
HUGE = {"pid": 4194304, "step": 1_234_567, "loss": 1.23e6, "silent_s": 3723.0, "rss_bytes": 1010 * 2**30}


def test_the_head_of_the_picture_shows_the_step_that_its_rows_show() -> None:
    progress = status(step=77).progress.model_copy(update={"highestStep": 145})
    scene = Scene("tiny", 2, "out", 200, status(progress=progress), [rank(0, step=77), rank(1, step=77)])
    text = drawn(picture(scene, 1.0))
    assert "step 77/100, 145 reached before" in text
    progress.step = 145
    scene.status = status(JobPhase.RECOVERING, progress=progress)
    assert "step 77/100, 145 reached before" in drawn(picture(scene, 1.0))
    scene.ranks = [rank(0, step=0, phase="BUILD", state="starting")]
    assert "step 145/100" in drawn(picture(scene, 1.0))


@pytest.mark.parametrize("phase", [JobPhase.RUNNING, JobPhase.SUSPENDING, JobPhase.SUSPENDED])
def test_ranks_that_were_looked_at_before_the_status_have_not_gone_back(phase: JobPhase) -> None:
    progress = status(step=53).progress.model_copy(update={"highestStep": 53})
    scene = Scene("tiny", 2, "out", 100, status(phase, progress=progress), [rank(0, step=50), rank(1, step=50)])
    text = drawn(picture(scene, 1.0))
    assert "step 50/100" in text
    assert "reached before" not in text


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("name", ["tiny", LONG])
def test_no_number_is_cut_and_each_rank_has_one_line(name: str, width: int) -> None:
    huge = {"tokensPerSecond": 53e6, "etaSeconds": 3_723_000.0, "totalSteps": 10_000_000, "loss": "1.23457e+06"}
    progress = status(step=1_234_567).progress.model_copy(update=huge)
    job = status(progress=progress, checkpoint=CheckpointStatus(step=1_234_560, round=1))
    ranks = [rank(0, **HUGE), rank(1, state="stopped", **HUGE), rank(2, phase="RENDEZVOUS", **HUGE)]
    text = drawn(picture(Scene(name, 3, "out", None, job, ranks), 423.0), width)
    for words in ("step 1234567/10000000", "loss 1.235e+06", "53M tokens/s", "ETA 1034:10:00", "saved 1234560"):
        assert words in text
    rows = [line for line in text.splitlines() if "4194304" in line]
    assert len(rows) == 3
    assert all("1234567" in row and "1010 GiB" in row and "1.23e+06" in row for row in rows)
    assert all(len(line) <= width for line in text.splitlines())


def test_words_of_wide_characters_keep_their_columns() -> None:
    why = "没有足够的节点可以运行这个工作负载" * 8
    records = [
        PodRecord(
            f"tiny-worker-{n}-0", f"u{n}", "worker", n, 0, "Pending", node="节点", reason="Unschedulable", message=m
        )
        for n, m in enumerate((why, "no room"))
    ]
    lines = drawn(pod_rows.table(records), 80).splitlines()
    assert all(cell_len(line) <= 80 for line in lines)
    column = lines[0].index("why")
    cells = [line for line in lines[1:] if "Unschedulable" in line]
    assert [cell_len(line[: line.index("Unschedulable")]) for line in cells] == [column, column]


@pytest.mark.parametrize("width", [60, 70])
def test_recoveries_that_are_too_wide_for_a_table_are_paragraphs(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    clock = dict.fromkeys(("detect", "decide", "drain", "schedule", "start", *CLOSED.clock), 21.3)
    summary(Scene("tiny", 4, "out", 100, status(recoveries=[CLOSED.model_copy(update={"clock": clock})])), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "rendezvous 21.3 s" in " ".join(text.split())
    assert "first step 21.3 s" in " ".join(text.split())


def test_recoveries_are_a_table_in_a_pipe_whatever_its_width() -> None:
    console = Console(file=io.StringIO(), width=60)
    clock = dict.fromkeys(("detect", "decide", "drain", "schedule", "start", *CLOSED.clock), 21.3)
    summary(Scene("tiny", 4, "out", 100, status(recoveries=[CLOSED.model_copy(update={"clock": clock})])), console)
    assert isinstance(console.file, io.StringIO)
    header, row = console.file.getvalue().partition("Where their time went\n")[2].splitlines()[:2]
    assert header.split()[:3] == ["round", "detect", "decide"]
    assert row.split().count("21.3") == len(clock)
    assert console.width == 60


def test_images_are_counted_as_images() -> None:
    scene = Scene.of_training(
        {"steps": 100, "data": {"source": "images", "path": "@digits"}}, name="tiny", world_size=1, out="o"
    )
    scene.status = status()
    assert "12.3k images/s" in drawn(picture(scene, 1.0))
    assert "12.3k images/s" in describe(scene)
    assert Scene.of_training({"steps": 5, "data": {"path": "x"}}, name="tiny", world_size=1, out="o").unit == "tokens"
    assert Scene.of_training(None, name="tiny", world_size=1, out="o").total_steps is None


def test_a_script_that_tells_no_loss_has_no_column_for_it() -> None:
    ranks = [rank(0, loss=None), rank(1, loss=None)]
    job = status(progress=status().progress.model_copy(update={"loss": ""}))
    text = drawn(picture(Scene("tiny", 2, "out", 100, job, ranks), 1.0))
    assert "loss" not in text
    done = job.model_copy(update={"phase": JobPhase.SUCCEEDED})
    assert told(job, done) == ["succeeded: step 60"]


def first_step_of(job: JobState, silent_s: float, *, compiles: bool = True) -> Scene:
    scene = Scene("tiny", 1, "out", 100, job, [rank(0, step=0, loss=None, silent_s=silent_s)])
    scene.compiles = compiles
    return scene


@pytest.mark.parametrize(("compiles", "word"), [(True, "compiling"), (False, "first step")])
def test_a_first_step_that_takes_long_is_told_with_its_time(compiles: bool, word: str) -> None:
    starting = status(JobPhase.STARTING, step=0)
    scene, stream, clock = first_step_of(starting, 0.0, compiles=compiles), io.StringIO(), Clock()
    display = PlainDisplay(scene, stream, clock)
    for second in range(38):
        clock.now = 100.0 + second
        scene.ranks = [rank(0, step=0, loss=None, silent_s=float(second))]
        display.draw()
    assert f"{word} 37.0 s" in drawn(picture(scene, 37.0))
    assert any(
        word in line and "37.0 s" in line for line in drawn(picture(scene, 37.0)).splitlines() if "worker" in line
    )
    scene.status, scene.ranks = status(step=1), [rank(0, step=1)]
    display.draw()
    display.draw()
    lines = [line.split(maxsplit=1)[1].split("  ") for line in stream.getvalue().splitlines() if word in line]
    assert [(words[0], words[-1].strip()) for words in lines] == [
        (word, "2.0 s so far"),
        (word, "12.0 s so far"),
        (word, "22.0 s so far"),
        (word, "32.0 s so far"),
        (word, "done after 37.0 s"),
    ]
    assert word not in drawn(picture(scene, 37.0))


def test_a_first_step_that_is_short_is_not_told() -> None:
    scene, stream = first_step_of(status(JobPhase.STARTING, step=0), 1.9), io.StringIO()
    display = PlainDisplay(scene, stream, Clock())
    display.draw()
    scene.status = status(step=0)
    display.draw()
    assert stream.getvalue() == ""


def test_what_was_last_heard_of_a_round_that_hung_is_no_first_step() -> None:
    hung = [rank(0, step=40, silent_s=9.0, step_seconds=0.5)]
    scene = Scene("tiny", 1, "out", 100, status(JobPhase.RECOVERING), hung)
    assert "first step 9.0 s" not in drawn(picture(scene, 1.0))
