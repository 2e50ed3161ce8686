from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.job import Job, Undisturbed
from tests.trainer.ranks import Ranks, fault_socket
from trainmaster.contract.config import TrainingConfig
from trainmaster.contract.wire import environment, profile_request
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.rank.injected_faults import Fault, encode
from trainmaster.tools.profiling.profile_page import MOST_BARS, bars, page, top
from trainmaster.tools.profiling.time_split import Span, Split, in_words, overlap, split, union


def span(name: str, start: float, end: float) -> Span:
    return Span(name, start, end, end - start)


def test_time_is_computing_or_communication_or_neither() -> None:
    compute = [span("a", 0, 40), span("b", 30, 50), span("c", 90, 120)]
    sent = [span("gloo:all_reduce", 45, 70)]
    found = split(2, (0, 100), compute, sent)
    assert found == Split(steps=2, wall=100, compute=60, hidden=5, communication=20, other=20)
    assert found.own == 80


def test_threads_that_work_side_by_side_count_once() -> None:
    assert union([span("a", 5, 9), span("b", 1, 6), span("c", 20, 30)], (2, 25)) == [(2, 9), (20, 25)]
    assert overlap([(0, 10), (20, 30)], [(5, 25), (28, 40)]) == 5 + 5 + 2


def test_a_lane_has_no_more_bars_than_a_screen_shows() -> None:
    spans = [span("short", 10 * i, 10 * i + 8) for i in range(5000)] + [span("long", 100_000, 100_900)]
    lane = bars(spans, (0, 101_000), origin=100)
    assert len(lane) <= MOST_BARS
    assert lane[0][0] == -100
    assert lane[-1][2] == "long"
    assert sum(length for _, length, _ in lane) >= 40_900
    apart = bars(spans[:3], (0, 100), origin=0)
    assert apart == [(0, 8, "short"), (10, 8, "short"), (20, 8, "short")]


def test_operators_are_told_without_what_they_call() -> None:
    assert top([Span("outer", 0, 10, 2), Span("inner", 1, 9, 8), Span("inner", 20, 21, 1)]) == [
        ("inner", 2, 9),
        ("outer", 1, 2),
    ]


def test_the_rank_that_the_others_wait_for_is_named() -> None:
    waiting = Split(1, wall=100, compute=40, hidden=0, communication=50, other=10)
    slow = Split(1, wall=100, compute=40, hidden=0, communication=10, other=50)
    said = in_words([waiting, waiting, slow])
    assert said == (
        "compute 40%, communication 37%, other 23%; "
        "the others wait for rank 2, whose own work takes 1.80 times the median"
    )


def test_no_name_ends_the_script_of_the_page() -> None:
    one = Split(1, 1, 1, 0, 0, 0)
    timeline = {"steps": [], "compute": [], "communication": [], "top": [("</script><script>alert(1)", 1, 1.0)]}
    assert "</script><script>alert" not in page(1, 1, 1, [one], [0], [timeline])


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([5, 4], r"steps \[5, 4\]: the first and the last of at most 100 steps are expected, in this order"),
        ([1, 200], r"steps \[1, 200\]: the first and the last of at most 100 steps are expected, in this order"),
        ([8, 10], r"profile.steps: the last one is 10, but the run has only 9 steps"),
    ],
)
def test_steps_that_cant_be_recorded_are_refused(steps: list[int], message: str) -> None:
    job: dict[str, Any] = {"data": {"path": "@stdlib"}, "steps": 9, "batch": {"global": 8}, "profile": {"steps": steps}}
    with pytest.raises(ValueError, match=message):
        TrainingConfig.model_validate(job)


@pytest.mark.processes
@pytest.mark.parametrize("parallelism", [{"dpReplicate": 2}, {"dpShard": 2}], ids=["replicate", "shard"])
def test_recorded_steps_change_nothing_and_tell_whom_the_others_wait_for(
    ranks: Ranks, undisturbed: Undisturbed, tmp_path: Path, text: Path, parallelism: dict[str, int]
) -> None:
    calm = undisturbed(2, parallelism=parallelism)
    recorded = Job(ranks, tmp_path / "recorded", text, parallelism=parallelism, profile={"steps": [4, 6]})
    slow = encode([Fault("slow", step=4, rank=1, seconds=0.5, steps=3)])
    socket = tmp_path / "faults"
    with fault_socket(socket):
        outcome = recorded.round(1, env={environment.FAULTS: slow, environment.FAULT_SOCKET: str(socket)})
    assert outcome.codes == [0, 0], outcome.output
    assert recorded.final == calm.final
    assert recorded.losses == calm.losses
    assert "profile of steps 4 to 6: " in outcome.output
    assert "the others wait for rank 1" in outcome.output

    folder = tmp_path / "recorded" / "profile" / "steps-4-6.r1"
    for rank in range(2):
        with gzip.open(folder / f"rank-{rank:05d}.trace.json.gz") as file:
            events = json.load(file)["traceEvents"]
        names = {event.get("name", "") for event in events}
        assert {f"trainmaster step {step}" for step in (4, 5, 6)} <= names
        assert "trainmaster step 7" not in names
    text_of_page = (folder / "index.html").read_text()
    assert "http" not in re.sub(r"https?://www.w3.org\S*", "", text_of_page)  # it needs no network
    (data,) = re.findall(r"^const data = (.*);$", text_of_page, re.M)
    told = json.loads(data)
    assert told["order"] == [1, 0]
    assert [number for number, _, _ in told["timelines"][0]["steps"]] == [4, 5, 6]
    assert any(name.startswith("gloo:") for _, _, name in told["timelines"][0]["communication"])
    assert told["splits"][0]["communication"] > told["splits"][1]["communication"]


def recorded_steps(folder: Path, ranks: int = 2) -> list[set[int]]:
    """Of each rank, as its trace has them."""
    found = []
    for rank in range(ranks):
        with gzip.open(folder / f"rank-{rank:05d}.trace.json.gz") as file:
            names = {event.get("name", "") for event in json.load(file)["traceEvents"]}
        found.append(
            {int(name.removeprefix("trainmaster step ")) for name in names if name.startswith("trainmaster s")}
        )
    return found


@pytest.mark.processes
def test_all_ranks_record_the_steps_that_rank_0_is_asked_for(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    calm = Job(ranks, tmp_path / "calm", text, precision="bf16")
    assert calm.round(1).codes == [0, 0]
    # The job's own steps come first where both would overlap.
    job = Job(ranks, tmp_path / "asked", text, precision="bf16", profile={"steps": [2, 3]})
    (tmp_path / "asked").mkdir()
    profile_request.ask(tmp_path / "asked", 2)
    outcome = job.round(1)
    assert outcome.codes == [0, 0], outcome.output
    assert (job.final, job.losses) == (calm.final, calm.losses)
    profiles = tmp_path / "asked" / "profile"
    assert {path.name for path in profiles.iterdir()} == {"steps-2-3.r1", "steps-6-7.r1"}
    assert recorded_steps(profiles / "steps-6-7.r1") == [{6, 7}, {6, 7}]
    assert (profiles / "steps-6-7.r1" / "index.html").is_file()
    assert "profile of steps 6 to 7: " in outcome.output
    assert not (tmp_path / "asked" / profile_request.FILE).exists()


@pytest.mark.processes
def test_a_request_that_has_not_begun_is_kept_through_a_restart(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    """Without an output folder: by way of the pod's agent, and beside the checkpoints."""
    job = Job(ranks, tmp_path, text)
    agent = tmp_path / "agent"
    agent.mkdir()
    env = {environment.OUTPUT_DIR: "", environment.FAULT_DIR: str(agent)}
    profile_request.ask(agent, 50)
    first = job.round(1, env=env, agent=True, stop_at=2, stop_bound=1)
    assert first.codes == [ExitCode.SAVED, ExitCode.SAVED], first.output
    assert (agent / profile_request.FILE).exists()
    second = job.round(2, env=env, agent=True)
    assert second.codes == [0, 0], second.output
    # Step 3 has the request, and the run ends with step 9.
    assert recorded_steps(tmp_path / "checkpoints" / "profile" / "steps-5-9.r2") == [set(range(5, 10))] * 2
    assert not (agent / profile_request.FILE).exists()


@pytest.mark.processes
def test_a_request_that_cant_be_understood_is_told_and_dropped(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    job = Job(ranks, tmp_path, text, steps=4)
    (tmp_path / profile_request.FILE).write_text("a few\n")
    outcome = job.round(1, agent=True)
    assert outcome.codes == [0, 0], outcome.output
    (event,) = [m for m in outcome.said("event") if m["reason"] == "ProfileRefused"]
    assert event["message"].endswith("doesn't hold a number of steps from 1 to 100")
    assert not (tmp_path / profile_request.FILE).exists()
    assert not (tmp_path / "profile").exists()
