"""Which step and which states of two runs differ first, and how that is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.jobs import PYTORCH, TRAINMASTER
from tests.api.jobs import job as document
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.cli.run import prove
from trainmaster_operator.cli.run.prove import verdict
from trainmaster_operator.cli.run.run_comparison import Difference, Record, Run, compare, read
from trainmaster_operator.cli.this_machine import cuda_devices

STEPS = 6


def records(round: int, first: int, last: int, ranks: int = 2, **changes: Any) -> list[Record]:
    """A round that resumed after step `first`. `changes`: at(step) -> what is different from then on."""
    found = []
    for rank in range(ranks):
        for step in range(first, last + 1):
            held = {"model": f"m{step}", "optimizer.state": f"o{step}"}
            others = {"scheduler": ("StepLR", f"s{step}"), "batches": ("generator", None)}
            found.append(Record(rank, step, round, step == first, held, others))
    return found


def losses(round: int, first: int, last: int) -> list[tuple[int, int, Any]]:
    return [(step, round, 1.0 / step) for step in range(first, last + 1)]


def calm() -> Run:
    return Run(records(1, 0, STEPS), losses(1, 1, STEPS))


def killed() -> Run:
    """Killed in step 5, resumed after step 3."""
    return Run(records(1, 0, 4) + records(2, 3, STEPS), losses(1, 1, 4) + losses(2, 4, STEPS))


def changed(run: Run, **where: Any) -> Run:
    """With a state of one record replaced. `where`: rank, step, round, and held or others."""
    held, others = where.pop("held", {}), where.pop("others", {})
    found = []
    for r in run.records:
        if all(getattr(r, name) == value for name, value in where.items()):
            r = Record(r.rank, r.step, r.round, r.restored, {**r.held, **held}, {**r.others, **others})
        found.append(r)
    return Run(found, run.losses)


def told(found: Difference | None, base: dict[str, Any] = PYTORCH, *, on_devices: bool = False) -> str:
    job = DistributedTrainingJob.model_validate(document(base))
    return "\n".join(verdict(found, job, STEPS, 1, 0.0, on_devices=on_devices))


def test_equal_runs_have_no_difference() -> None:
    assert compare(calm(), killed()) is None
    assert "Proven: 2 ranks, 6 steps, 1 kill." in told(None)


def test_the_first_step_in_time_counts_and_all_ranks_that_differ_there() -> None:
    run = changed(killed(), round=2, step=5, held={"model": "x"})
    run = changed(run, round=2, step=4, rank=1, held={"optimizer.state": "x"})
    found = compare(calm(), run)
    assert found is not None
    assert (found.step, found.round, found.restored, found.resumed) == (4, 2, False, 3)
    assert found.held == {"optimizer.state": [1]}
    assert "optimizer.state: differs on rank 1" in told(found)


def test_a_state_that_does_not_come_back_is_told_apart_from_one_that_is_not_kept() -> None:
    found = compare(calm(), changed(killed(), round=2, step=3, restored=True, held={"model": "x"}))
    assert found is not None
    assert (found.step, found.restored) == (3, True)
    assert "what was restored from the checkpoint of step 3" in told(found)
    assert "load_state_dict()" in told(found)


def test_what_is_not_kept_and_was_different_after_the_restart_is_suspected() -> None:
    run = changed(killed(), round=2, step=3, others={"scheduler": ("StepLR", "s0")})
    run = changed(run, round=2, step=4, held={"model": "x"})
    found = compare(calm(), run)
    assert found is not None
    assert (found.suspects, found.unknown) == ({"scheduler": "StepLR"}, {"batches": "generator"})
    assert "tm.State(..., scheduler=scheduler)" in told(found)
    assert "batches" not in told(found)


def test_without_a_suspect_what_has_a_hidden_position_is_named() -> None:
    found = compare(calm(), changed(killed(), round=2, step=4, held={"model": "x"}))
    assert "perhaps batches (a generator)" in told(found)


def test_a_script_on_devices_is_told_that_it_chooses_its_kernels_itself() -> None:
    found, words = (
        compare(calm(), changed(killed(), round=2, step=4, held={"model": "x"})),
        "only in Trainmaster's own trainer",
    )
    assert words in told(found, on_devices=True)
    assert words not in told(found)
    assert words not in told(found, TRAINMASTER, on_devices=True)


@pytest.mark.parametrize(
    ("present", "template", "on_devices"),
    [
        (2, {}, True),
        (1, {}, False),
        (0, {}, False),
        (2, {"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}, True),
        (0, {"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}, False),
    ],
)
def test_ranks_have_devices_where_a_run_would_give_them_some(
    present: int, template: dict[str, Any], on_devices: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(cuda_devices, "OTHER_DRIVER", Path("/none"))
    monkeypatch.setattr(cuda_devices, "uuids", lambda: [f"GPU-{number}" for number in range(present)])
    given = document(PYTORCH)
    given["spec"]["workers"]["template"]["spec"]["containers"][0] |= template
    assert prove._have_devices(DistributedTrainingJob.model_validate(given)) is on_devices


def test_our_own_loop_has_nobody_else_to_blame() -> None:
    found = compare(calm(), changed(killed(), round=2, step=4, held={"model": "x"}))
    assert "Trainmaster has a bug" in told(found, TRAINMASTER)


def test_a_difference_before_the_first_kill_is_not_blamed_on_it() -> None:
    found = compare(calm(), changed(killed(), round=1, step=2, held={"model": "x"}))
    assert found is not None
    assert found.resumed is None
    assert "differ in step 2, before the first kill" in told(found)


def test_a_loss_alone_is_enough_and_nan_equals_itself() -> None:
    run = killed()
    run.losses[-1] = (STEPS, 2, 0.5)
    found = compare(calm(), run)
    assert found is not None
    assert (found.step, found.held, found.losses) == (STEPS, {}, (1 / STEPS, 0.5))
    both = calm(), killed()
    for one in both:
        one.losses[-1] = (STEPS, one.losses[-1][1], "nan")
    assert compare(*both) is None


def test_a_loss_that_is_missing_is_a_difference() -> None:
    run = killed()
    del run.losses[-1]
    found = compare(calm(), run)
    assert found is not None
    assert (found.step, found.losses) == (STEPS, (1 / STEPS, None))


def test_with_a_tolerance_only_losses_count() -> None:
    run = changed(killed(), round=2, step=4, held={"model": "x"})
    run.losses[-1] = (STEPS, 2, 1 / STEPS * (1 + 1e-7))
    assert compare(calm(), run, 1e-6) is None
    assert compare(calm(), run, 1e-8) is not None


def test_lines_that_a_killed_rank_did_not_finish_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "digests"
    folder.mkdir()
    line = {"step": 1, "round": 1, "at": "after", "held": {"model": "m"}, "others": {"x": ["Generator", None]}}
    (folder / "rank-00003.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(line)[:20])
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "round": 1, "loss": 2.5}\n{"step": 2, "rou')
    run = read(tmp_path)
    assert run.records == [Record(3, 1, 1, False, {"model": "m"}, {"x": ("Generator", None)})]
    assert run.losses == [(1, 1, 2.5)]


def test_a_generator_that_nobody_seeds_is_no_difference_by_itself() -> None:
    run = killed()
    for step in range(STEPS + 1):
        for round in (1, 2):
            run = changed(run, round=round, step=step, held={"random_generators.python": f"x{step}"})
    other = calm()
    for step in range(STEPS + 1):
        other = changed(other, step=step, held={"random_generators.python": f"y{step}"})
    assert compare(other, run) is None
    run.losses[0] = (1, 1, 7.0)
    found = compare(other, run)
    assert found is not None
    assert found.unseeded == ("random_generators.python",)
    assert "different from the start: random_generators.python" in told(found)
