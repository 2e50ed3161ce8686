"""Evaluations beside training, in worlds of real ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.trainer.job import Job
from tests.trainer.ranks import Ranks, fault_socket
from trainmaster.contract.config import TrainingConfig
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.data import heldout_samples
from trainmaster.errors import ConfigError
from trainmaster.models import allowed_parallelism
from trainmaster.rank.injected_faults import Fault, encode
from trainmaster.train.scheduled_evaluations import ScheduledEvaluations

CONTEXT = 32  # of `Job`


class EvaluatedJob(Job):
    @property
    def losses(self) -> dict[int, float]:
        return {line["step"]: line["loss"] for line in self.metrics if "loss" in line}

    @property
    def evaluations(self) -> dict[int, float]:
        return {line["step"]: line["evaluation_loss"] for line in self.metrics if "evaluation_loss" in line}


@pytest.fixture(scope="session")
def eight_windows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last of them short, so that ranks have different numbers of tokens."""
    folder = tmp_path_factory.mktemp("eight")
    (folder / "a.txt").write_text("".join(f"{n} comes before {n + 1}\n" for n in range(100))[: 8 * CONTEXT - 11])
    return folder


@pytest.mark.processes
@pytest.mark.parametrize(
    "parallelism",
    [
        {"dpReplicate": 2},
        {"dpShard": 2},
        {"dpShard": 2, "sharding": {"stage": 2}},
        {"tp": 2},
        {"cp": 2},
        {"pp": 2},
        {"pp": 2, "pipeline": {"schedule": "GPipe"}},
        {"pp": 2, "pipeline": {"schedule": "Interleaved1F1B"}},
        {"pp": 2, "pipeline": {"schedule": "InterleavedZeroBubble"}},
    ],
    ids=[
        "replicate",
        "shard",
        "stage-2",
        "tp",
        "cp",
        "1f1b",
        "gpipe",
        "interleaved",
        "zero-bubble",
    ],
)
def test_an_evaluation_on_all_that_is_trained_on_tells_the_next_steps_loss(
    ranks: Ranks, tmp_path: Path, eight_windows: Path, parallelism: dict[str, Any]
) -> None:
    """A batch that takes all of an epoch has the same samples in each step."""
    evaluation = {"every": 1, "data": {"path": str(eight_windows)}}
    job = EvaluatedJob(ranks, tmp_path, eight_windows, parallelism=parallelism, steps=3, evaluation=evaluation)
    job.config["model"]["options"]["layers"] = 4  # two stages for each of two ranks
    outcome = job.round(1)
    assert outcome.codes == [0, 0], outcome.output
    assert set(job.evaluations) == {1, 2, 3}
    for step in (1, 2):
        assert job.evaluations[step] == pytest.approx(job.losses[step + 1], rel=1e-5)
        assert f"evaluation: step {step}, loss {job.evaluations[step]:.4f}" in outcome.output


@pytest.mark.processes
def test_a_killed_run_has_the_evaluations_and_the_best_step_of_an_uninterrupted_one_and_trains_as_without_any(
    ranks: Ranks, tmp_path: Path, text: Path
) -> None:
    (tmp_path / "unlike").mkdir()  # letters that are trained to be unlikely: the loss on them soon rises
    (tmp_path / "unlike" / "a.txt").write_text("ZQXJ" * 64)
    training: dict[str, Any] = {"parallelism": {"dpShard": 2}, "checkpoint": {"every": 3, "keep": 1}}
    plain = EvaluatedJob(ranks, tmp_path / "plain", text, **training)
    assert plain.round(1).codes == [0, 0]
    training["checkpoint"]["keepBest"] = True
    training["evaluation"] = {"every": 2, "samples": 5, "data": {"path": str(tmp_path / "unlike")}}  # 3 and 2 of a rank
    whole = EvaluatedJob(ranks, tmp_path / "whole", text, **training)
    outcome = whole.round(1, agent=True)
    assert outcome.codes == [0, 0], outcome.output
    assert whole.losses == plain.losses
    assert whole.final == plain.final
    assert set(whole.evaluations) == {2, 4, 6, 8, 9}
    best = min(whole.evaluations, key=lambda step: (whole.evaluations[step], step))
    assert best < 9, "nothing that is older has to be spared"
    assert whole.checkpoints() == {f"step-{best}.r1", "step-9.r1"}

    broken = EvaluatedJob(ranks, tmp_path / "broken", text, **training)
    socket = tmp_path / "faults"
    faults = {environment.FAULTS: encode([Fault("kill", step=6, rank=1)]), environment.FAULT_SOCKET: str(socket)}
    with fault_socket(socket):
        assert broken.round(1, env=faults, agent=True).codes == [ExitCode.PEER_LOST, -9]
        second = broken.round(2, env=faults, agent=True)
    assert second.codes == [0, 0], second.output
    assert broken.final == {**whole.final, "round": 2}
    assert broken.evaluations == whole.evaluations
    assert {name.split(".r")[0] for name in broken.checkpoints()} == {f"step-{best}", "step-9"}


@pytest.mark.processes
def test_a_run_that_learns_nothing_more_ends_early_and_stays_ended(
    ranks: Ranks, tmp_path: Path, text: Path, eight_windows: Path
) -> None:
    stop = {"patience": 2, "minDelta": 100.0}
    evaluation = {"every": 1, "data": {"path": str(eight_windows)}, "stop": stop}
    job = EvaluatedJob(ranks, tmp_path, text, evaluation=evaluation)
    outcome = job.round(1, world_size=1)
    assert outcome.codes == [0], outcome.output
    assert job.final["step"] == 3  # the first is an improvement on nothing
    assert "training stops early: none of the last 2 evaluations was an improvement" in outcome.output
    assert job.checkpoints() == {"step-3.r1"}
    again = job.round(2, world_size=1)
    assert again.codes == [0], again.output
    assert job.final["step"] == 3


def config(folder: Path, **evaluation: Any) -> TrainingConfig:
    data = {"path": str(folder), **evaluation}
    training = {
        "model": {"options": {"layers": 2, "width": 32, "heads": 2, "context": CONTEXT}},
        "data": {"path": "/data"},
        "steps": 9,
        "batch": {"global": 8},
        "evaluation": {"every": 2, "data": data},
    }
    return TrainingConfig.model_validate(training)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "evaluation.data.path: .* doesn't exist; a folder of text files is expected"),
        ("", "evaluation.data.path: .* holds no text file that isn't empty"),
        ("short", "evaluation.data.path: .* holds . bytes, less than one sequence; 33 or more would do"),
    ],
)
def test_data_without_a_whole_sequence_is_refused_before_ranks_start(
    tmp_path: Path, content: str | None, sentence: str
) -> None:
    folder = tmp_path / "evaluation"
    if content is not None:
        folder.mkdir()
        (folder / "a.txt").write_text(content)
    refused = config(folder)
    assert refused.evaluation is not None
    with pytest.raises(ConfigError, match=sentence):
        heldout_samples.find(refused, refused.evaluation)


@pytest.mark.parametrize("schedule", ["ZBV", "DualPipeV"])
def test_pipelines_that_cannot_leave_out_gradients_are_refused(eight_windows: Path, schedule: str) -> None:
    parallelism = {"pp": 2, "pipeline": {"schedule": schedule}}
    fields = config(eight_windows).model_dump(by_alias=True) | {"parallelism": parallelism}
    fields["model"]["options"]["layers"] = 4
    with pytest.raises(ConfigError, match=f"evaluation: a pipeline of schedule {schedule} can't .* would do"):
        allowed_parallelism.validate(TrainingConfig.model_validate(fields))
    del fields["evaluation"]
    allowed_parallelism.validate(TrainingConfig.model_validate(fields))


def test_an_evaluation_takes_no_more_than_there_is(eight_windows: Path) -> None:
    all_of_it = config(eight_windows)
    assert all_of_it.evaluation is not None
    assert heldout_samples.build(all_of_it, all_of_it.evaluation)[1] == 8
    for asked, taken in ((5, 5), (100, 8)):
        evaluation = all_of_it.evaluation.model_copy(update={"samples": asked})
        assert heldout_samples.build(all_of_it, evaluation)[1] == taken


@pytest.mark.parametrize("restores", [True, False])
def test_a_failed_evaluation_of_islands_leaves_a_step_to_rescue_if_its_parameters_are_back(restores: bool) -> None:
    rescue = SimpleNamespace(mutating=False)
    shown: list[str] = []

    @contextmanager
    def common_parameters() -> Iterator[None]:
        try:
            yield
        finally:
            if not restores:
                raise MemoryError("no room to swap parameters")
            shown.append("own parameters")

    def loss(*_: Any) -> float:
        assert rescue.mutating
        raise RuntimeError("a peer is gone")

    config: Any = SimpleNamespace(
        checkpoint=SimpleNamespace(keepBest=False), evaluation=SimpleNamespace(every=1), steps=9
    )
    anything: Any = SimpleNamespace(phase=lambda phase: None, settle=lambda wait: None, beat=None)
    evaluation: Any = SimpleNamespace(scores=SimpleNamespace(step=0), loss=loss)
    outer: Any = SimpleNamespace(shown=common_parameters)
    evaluations = ScheduledEvaluations(
        config, evaluation, anything, anything, anything, anything, anything, outer=outer, rescue=cast(Any, rescue)
    )
    with pytest.raises(RuntimeError if restores else MemoryError):
        evaluations.evaluate(1, anything)
    assert (rescue.mutating, shown) == (not restores, ["own parameters"] if restores else [])


def test_a_best_checkpoint_needs_evaluations() -> None:
    with pytest.raises(ValueError, match=r"checkpoint\.keepBest: .* training\.evaluation is missing"):
        TrainingConfig.model_validate(
            {"data": {"path": "/data"}, "steps": 9, "batch": {"global": 8}, "checkpoint": {"keepBest": True}}
        )


def test_a_job_without_evaluations_is_written_as_before_there_were_any() -> None:
    written = TrainingConfig.model_validate(
        {"data": {"path": "/data"}, "steps": 9, "batch": {"global": 8}}
    ).model_dump()
    assert "evaluation" not in written
    assert "keepBest" not in written["checkpoint"]
