from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.job import Job, Undisturbed
from tests.trainer.ranks import Ranks, fault_socket
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.rank.injected_faults import Fault, encode, parse

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("parallelism", [{"dpReplicate": 2}, {"dpShard": 2}], ids=["replicate", "shard"])
def test_a_killed_and_resumed_run_has_the_losses_and_the_state_of_an_uninterrupted_one(
    ranks: Ranks, undisturbed: Undisturbed, tmp_path: Path, text: Path, parallelism: dict[str, int]
) -> None:
    whole = undisturbed(2, parallelism=parallelism)
    broken = Job(ranks, tmp_path / "broken", text, parallelism=parallelism)
    socket = tmp_path / "faults"
    faults = {
        environment.FAULTS: encode([Fault("kill", step=5, rank=1)]),
        environment.FAULT_SOCKET: str(socket),
    }
    with fault_socket(socket) as fired:
        first = broken.round(1, env=faults, agent=True)
        assert fired == {"fault-0"}
        assert first.codes == [ExitCode.PEER_LOST, -9], first.output
        (words,) = first.said("failed")
        assert words["cascade"]
        assert words["step"] == 4
        second = broken.round(2, env=faults, agent=True)
    assert second.codes == [0, 0], second.output
    assert [m["step"] for m in second.said("resumed")] == [3, 3]
    assert broken.final == {**whole.final, "round": 2}
    assert broken.losses == whole.losses
    assert [line["step"] for line in broken.metrics] == [1, 2, 3, 4, 4, 5, 6, 7, 8, 9]
    assert {line["round"] for line in broken.metrics} == {1, 2}
    told = [record.read() for record in second.records]
    assert all(0 < progress.rss_bytes <= progress.rss_peak_bytes for progress in told)


@pytest.mark.parametrize(
    ("world_size", "mesh"),
    [(3, {"dpReplicate": 3}), (4, {"dpReplicate": 2, "dpShard": 2})],
    ids=["replicate-3", "hsdp-2x2"],
)
def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one_at_any_world_size(
    ranks: Ranks, tmp_path: Path, text: Path, world_size: int, mesh: dict[str, int]
) -> None:
    batch = {"global": 12 if world_size == 3 else 8}
    whole = Job(ranks, tmp_path / "whole", text, parallelism=mesh, batch=batch, steps=6)
    assert whole.round(1, world_size).codes == [0] * world_size
    parted = Job(ranks, tmp_path / "parted", text, parallelism=mesh, batch=batch, steps=6)
    first = parted.round(1, world_size, agent=True, stop_at=2, stop_bound=1)
    assert first.codes == [ExitCode.SAVED] * world_size, first.output
    assert parted.round(2, world_size).codes == [0] * world_size
    assert parted.final == {**whole.final, "round": 2}
    assert parted.losses == whole.losses


def test_a_batch_that_scales_is_in_each_world_what_its_rule_says(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    scaling = {"ranks": 4, "learningRate": "Linear"}
    scaled = Job(ranks, tmp_path / "scaled", text, steps=4, batch={"global": 16, "scaling": scaling})
    assert scaled.round(1, world_size=2).codes == [0, 0]
    optimizer = {"warmupSteps": 2, "lr": 0.5e-2}
    plain = Job(ranks, tmp_path / "plain", text, steps=4, batch={"global": 8}, optimizer=optimizer)
    assert plain.round(1, world_size=2).codes == [0, 0]
    assert scaled.losses == plain.losses
    assert scaled.final["digest"] == plain.final["digest"]


def test_a_run_goes_on_in_another_world_size_with_the_same_losses(
    ranks: Ranks, undisturbed: Undisturbed, tmp_path: Path, text: Path
) -> None:
    whole = undisturbed(2, parallelism={"dpReplicate": 1})
    moving = Job(ranks, tmp_path / "moving", text, parallelism={"dpReplicate": 1}, steps=9)
    for number, (size, until) in enumerate([(2, 3), (1, 6), (2, 9)], start=1):
        outcome = moving.round(number, size, agent=True, stop_at=until, stop_bound=1)
        assert outcome.codes == [0 if until == 9 else ExitCode.SAVED] * size, outcome.output
    assert {name.split(".r")[1] for name in moving.checkpoints()} == {"1", "2", "3"}
    for step, loss in whole.losses.items():
        assert moving.losses[step] == pytest.approx(loss, abs=5e-6)


def test_a_damaged_checkpoint_is_passed_over_and_people_are_told(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    job = Job(ranks, tmp_path, text, parallelism={"dpShard": 2})
    assert job.round(1).codes == [0, 0]
    before = job.final
    shutil.rmtree(tmp_path / "checkpoints" / "step-9.r1")
    shard = tmp_path / "checkpoints" / "step-6.r1" / "rank-00001.safetensors"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 0xFF
    shard.write_bytes(data)
    outcome = job.round(2, agent=True)
    assert outcome.codes == [0, 0], outcome.output
    reasons = {m["reason"]: m["message"] for m in outcome.said("event")}
    assert "step-6.r1/rank-00001.safetensors: its content doesn't match" in reasons["CheckpointDamaged"]
    assert reasons["CheckpointFallback"] == "resuming from step-3.r1 instead of step-6.r1"
    assert {m["checkpoint"] for m in outcome.said("resumed")} == {str(tmp_path / "checkpoints" / "step-3.r1")}
    assert job.final == {**before, "round": 2}


def test_a_job_whose_steps_were_lowered_below_its_checkpoint_is_done(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    job = Job(ranks, tmp_path, text)
    assert job.round(1).codes == [0, 0]
    before = job.final
    job.config["steps"] = 4
    outcome = job.round(2, agent=True, stop_at=12, stop_bound=1)  # where a loop would leave that does not end
    assert outcome.codes == [0, 0], outcome.output
    assert (job.final["step"], job.final["digest"]) == (9, before["digest"])


def test_a_bound_stop_saves_the_same_step_on_all_ranks(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    job = Job(ranks, tmp_path, text, parallelism={"dpShard": 2})
    outcome = job.round(1, agent=True, stop_at=4, stop_bound=1)
    assert outcome.codes == [ExitCode.SAVED, ExitCode.SAVED], outcome.output
    assert [m["step"] for m in outcome.said("saved")] == [4, 4]
    assert job.checkpoints() == {"step-3.r1", "step-4.r1"}
    again = job.round(2, agent=True)
    assert again.codes == [0, 0], again.output
    assert [m["step"] for m in again.said("resumed")] == [4, 4]
    assert again.records[1].read().step == 9


def test_an_older_round_cannot_take_the_storage_back(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    job = Job(ranks, tmp_path, text)
    assert job.round(2).codes == [0, 0]
    outcome = job.round(1, agent=True)
    assert outcome.codes == [ExitCode.FENCED, ExitCode.FENCED]
    assert {m["cause"] for m in outcome.said("failed")} == {"Fenced"}


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    job = Job(ranks, tmp_path, text, optimizer={"lr": 1e9, "clipNorm": 0, "name": "sgd"})
    outcome = job.round(1, agent=True)
    assert outcome.codes == [ExitCode.DIVERGED, ExitCode.DIVERGED], outcome.output
    assert {m["cause"] for m in outcome.said("failed")} == {"Diverged"}
    assert "loss is" in outcome.said("failed")[0]["message"]


@pytest.mark.parametrize(
    ("training", "env", "sentence"),
    [
        (
            {"parallelism": {"dpShard": 3}},
            {},
            "dpShard 3 needs a multiple of 3 ranks. Use dpShard 1, or 3 or 6 ranks.",
        ),
        ({"batch": {"global": 8, "micro": 3}}, {}, "batch.micro 3 doesn't divide"),
        ({}, {environment.RESUME: "/nowhere/step-3.r1"}, "checkpoint.resume: /nowhere/step-3.r1 can't be used"),
        ({}, {environment.RESUME: "/nowhere"}, "is neither a checkpoint"),
        ({}, {environment.CHECKPOINT_DIR: "/dev/null/x"}, "checkpoint folder /dev/null/x can't be used"),
    ],
    ids=["mesh", "batch", "checkpoint", "folder", "unwritable"],
)
def test_what_a_person_did_wrong_is_one_sentence_and_exit_2(
    ranks: Ranks, tmp_path: Path, text: Path, training: dict[str, Any], env: dict[str, str], sentence: str
) -> None:
    outcome = Job(ranks, tmp_path, text, **training).round(1, world_size=1, env=env, agent=True)
    assert outcome.codes == [ExitCode.CONFIG_ERROR]
    assert sentence in outcome.said("failed")[0]["message"]
    assert "Traceback" not in outcome.output


def test_a_job_starts_from_the_checkpoint_that_is_named_and_goes_on_with_its_own(
    ranks: Ranks, tmp_path: Path, text: Path
) -> None:
    first = Job(ranks, tmp_path / "first", text)
    assert first.round(1, world_size=1).codes == [0]
    second = Job(ranks, tmp_path / "second", text)
    named = {environment.RESUME: str(tmp_path / "first" / "checkpoints" / "step-6.r1")}
    outcome = second.round(1, world_size=1, env=named, agent=True)
    assert outcome.said("resumed")[0]["step"] == 6
    assert second.final == first.final
    again = second.round(2, world_size=1, env=named, agent=True)
    assert again.said("resumed")[0]["step"] == 9


def test_changed_data_is_refused(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    own = tmp_path / "text"
    shutil.copytree(text, own)
    job = Job(ranks, tmp_path / "run", own)
    assert job.round(1, world_size=1).codes == [0]
    (own / "b.txt").write_text("another file " * 500)
    outcome = job.round(2, world_size=1, agent=True)
    assert outcome.codes == [ExitCode.DATA_ERROR]
    assert "the data has changed since checkpoint" in outcome.said("failed")[0]["message"]


def cursor(job: Job, directory: str) -> dict[str, Any]:
    manifest = json.loads((job.output / "checkpoints" / directory / "manifest.json").read_text())
    return {**manifest["data"], "batch": manifest["batch"]}


def test_a_smaller_micro_batch_after_the_device_ran_out_of_memory_has_the_same_losses(
    ranks: Ranks, undisturbed: Undisturbed, tmp_path: Path, text: Path
) -> None:
    whole = undisturbed()
    broken = Job(ranks, tmp_path / "broken", text)
    socket = tmp_path / "faults"
    fault = parse("oom:rank=1,step=5,where=device")
    faults = {environment.FAULTS: encode([fault]), environment.FAULT_SOCKET: str(socket)}
    with fault_socket(socket):
        first = broken.round(1, env=faults, agent=True)
    (words,) = [m for m in first.said("failed") if not m["cascade"]]
    assert (words["cause"], words["step"]) == ("OutOfMemory", 4)
    assert "OutOfMemoryError" in words["traceback"]
    second = broken.round(2, env={environment.MICRO_DIVISOR: "2"}, agent=True)
    assert second.codes == [0, 0], second.output
    assert cursor(broken, "step-3.r1")["batch"] == {"global": 8, "micro": 2, "accumulation": 2}
    assert cursor(broken, "step-9.r2")["batch"] == {"global": 8, "micro": 1, "accumulation": 4}
    assert broken.losses == pytest.approx(whole.losses, rel=1e-6)


def test_the_samples_of_a_step_that_diverged_are_left_out_and_stay_so(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    steady = {"optimizer": {"warmupSteps": 2, "lr": 1e-2, "schedule": "Constant"}}
    job = Job(ranks, tmp_path / "job", text, **steady)
    socket = tmp_path / "faults"
    faults = {environment.FAULTS: encode([parse("nan:rank=1,step=5")]), environment.FAULT_SOCKET: str(socket)}
    with fault_socket(socket):
        first = job.round(1, env=faults, agent=True)
    assert first.codes == [ExitCode.DIVERGED, ExitCode.DIVERGED], first.output
    assert {tuple(m["samples"]) for m in first.said("failed")} == {(32, 40)}
    assert job.round(2, env={environment.SKIPPED: "[[32, 40]]"}).codes == [0, 0]
    assert (cursor(job, "step-9.r2")["consumed"], cursor(job, "step-9.r2")["skipped"]) == (72, [[32, 40]])

    longer = Job(ranks, tmp_path / "job", text, steps=12, **steady)
    resized = longer.round(3, world_size=1)  # whoever starts it has forgotten what was left out
    assert resized.codes == [0], resized.output
    apart = Job(ranks, tmp_path / "apart", text, steps=12, **steady)
    assert apart.round(1, env={environment.SKIPPED: "[[32, 40]]"}).codes == [0, 0]
    assert longer.losses == pytest.approx(apart.losses, rel=1e-6)


def test_a_loss_that_spikes_diverges_by_rule_also_after_a_resume(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    rule = {"spikeFactor": 1.001, "window": 4}  # any batch that is a little harder than those before
    how = {"divergence": rule, "optimizer": {"lr": 1e-9}, "steps": 40}
    whole = Job(ranks, tmp_path / "whole", text, **how)
    outcome = whole.round(1, agent=True)
    assert outcome.codes == [ExitCode.DIVERGED] * 2, outcome.output
    words = outcome.said("failed")[0]
    assert "more than 1.001 times" in words["message"]
    assert words["step"] < 8, "a window that began anew at step 4 would be full by then"
    parted = Job(ranks, tmp_path / "parted", text, **how)
    assert parted.round(1, agent=True, stop_at=4, stop_bound=1).codes == [ExitCode.SAVED] * 2
    again = parted.round(2, agent=True)
    assert again.codes == [ExitCode.DIVERGED] * 2
    assert again.said("failed")[0]["message"] == words["message"]


def test_a_checkpoint_that_has_seen_samples_to_leave_out_is_passed_over_while_there_is_an_earlier_one(
    ranks: Ranks, tmp_path: Path, text: Path
) -> None:
    job = Job(ranks, tmp_path, text)
    assert job.round(1, agent=True, stop_at=6, stop_bound=1).codes == [ExitCode.SAVED] * 2
    assert job.checkpoints() == {"step-3.r1", "step-6.r1"}
    second = job.round(2, env={environment.SKIPPED: "[[32, 40]]"}, agent=True)
    assert second.codes == [0, 0], second.output
    assert [m["step"] for m in second.said("resumed")] == [3, 3]
    assert cursor(job, "step-6.r2")["skipped"] == [[32, 40]]
    third = job.round(3, env={environment.SKIPPED: "[[0, 8], [32, 40]]"}, agent=True)
    assert third.codes == [0, 0], third.output
    assert [m["step"] for m in third.said("resumed")] == [9, 9]
    assert "SamplesNotSkipped" in {m["reason"] for m in third.said("event")}


@pytest.mark.processes
def test_a_checkpoint_of_another_optimizer_is_refused_in_a_sentence(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    job = Job(ranks, tmp_path, text, steps=3, optimizer={"name": "muon"})
    assert job.round(1).codes == [0, 0]
    job.config |= {"steps": 6, "optimizer": {"name": "adamw"}}
    done = job.round(2)
    assert done.refused, done.codes
    assert "optimizer.name: adamw can't continue from checkpoint " in done.output
    assert "was made with muon: they keep different kinds of momentum; use muon" in done.output
    job.config["optimizer"] = {"name": "muon"}
    assert job.round(3).codes == [0, 0]


@pytest.mark.processes
@pytest.mark.parametrize(("had", "then"), [("adamw", "sgd"), ("muon", "sgd"), ("sgd", "adamw"), ("sgd", "muon")])
def test_an_optimizer_goes_on_from_another_ones_checkpoint_or_says_why_not(
    ranks: Ranks, tmp_path: Path, text: Path, had: str, then: str
) -> None:
    job = Job(ranks, tmp_path, text, steps=3, optimizer={"name": had, "lr": 1e-3})
    assert job.round(1).codes == [0, 0]
    job.config |= {"steps": 6, "optimizer": {"name": then, "lr": 1e-3}}
    done = job.round(2)
    if had == "adamw":
        assert done.codes == [0, 0], done.output
    else:
        assert done.refused, done.codes
        assert f"was made with {had}: they keep different kinds of momentum; use {had}" in done.output
