"""Checkpoints in memory and the rescue of the last step, with real ranks that are killed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.job import Job, Undisturbed
from tests.trainer.ranks import Outcome, Ranks, fault_socket
from tests.trainer.test_steps import SCRIPT, lines
from trainmaster.checkpoint.files.memory_tier import RamFolder, checksum_of, into
from trainmaster.checkpoint.files.received_copies import _sweep
from trainmaster.checkpoint.memory.mapped_file import sweep_prepared
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.memory_tier_size import budget
from trainmaster.rank.injected_faults import Fault, encode
from trainmaster_operator.api.quantities import bytes_of

pytestmark = pytest.mark.processes

MESHES = {
    "replicate": (2, {"dpReplicate": 2}),
    "shard": (2, {"dpShard": 2}),
    "hsdp": (4, {"dpReplicate": 2, "dpShard": 2}),
}


class RamJob(Job):
    """A job whose ranks share one pod, and so one memory; nothing goes to storage before the end."""

    def __init__(
        self, ranks: Ranks, output: Path, text: Path, *, every: str = "1", budget: int = 1 << 28, **training: Any
    ):
        super().__init__(ranks, output, text, **{"checkpoint": {"every": 100, "keep": 3}, **training})
        self.memory = output / "memory"
        self.memory.mkdir(parents=True)
        self.ram = {
            environment.RAM_DIR: str(self.memory),
            environment.RAM_BUDGET: str(budget),
            environment.RAM_EVERY: every,
            environment.POD_UID: "pod",
        }

    @property
    def folder(self) -> RamFolder:
        return RamFolder(self.memory, 1 << 28)

    def broken(self, number: int, world_size: int, fault: Fault, **how: Any) -> Outcome:
        socket = self.output / f"faults-{number}"
        faults = {environment.FAULTS: encode([fault]), environment.FAULT_SOCKET: str(socket)}
        local = {"LOCAL_WORLD_SIZE": str(world_size)}
        with fault_socket(socket) as fired:
            outcome = self.round(number, world_size, env={**self.ram, **local, **faults}, agent=True, **how)
        assert fired, outcome.output
        return outcome

    def sound(self, number: int, world_size: int, **how: Any) -> Outcome:
        local = {"LOCAL_WORLD_SIZE": str(world_size)}
        outcome = self.round(number, world_size, env={**self.ram, **local}, agent=True, **how)
        assert outcome.codes == [0] * world_size, outcome.output
        return outcome


def reasons(outcome: Outcome) -> dict[str, str]:
    return {m["reason"]: m["message"] for m in outcome.said("event")}


@pytest.mark.parametrize("mesh", MESHES)
def test_with_memory_at_each_step_a_killed_rank_costs_no_completed_step(
    ranks: Ranks, undisturbed: Undisturbed, tmp_path: Path, text: Path, mesh: str
) -> None:
    size, parallelism = MESHES[mesh]
    whole = undisturbed(size, parallelism=parallelism)
    job = RamJob(ranks, tmp_path / "broken", text, parallelism=parallelism)
    job.broken(1, size, Fault("kill", step=5, rank=1))
    second = job.broken(2, size, Fault("kill", step=8, rank=0))
    assert [m["step"] for m in second.said("resumed")] == [4] * size
    third = job.sound(3, size)
    assert [m["step"] for m in third.said("resumed")] == [7] * size
    assert job.final == {**whole.final, "round": 3}
    assert job.losses == whole.losses
    assert [line["step"] for line in job.metrics] == list(range(1, 10))


LATE = """
from trainmaster.train import loop
class Late(loop.Reading):
    def arrived(self):
        return False
loop.Reading = Late
loop.main()
"""
"""Our loop on a device whose numbers arrive only when somebody waits for them."""


def test_a_step_that_only_memory_has_is_in_the_metrics_once_where_numbers_arrive_late(
    ranks: Ranks, undisturbed: Undisturbed, tmp_path: Path, text: Path
) -> None:
    script = tmp_path / "late.py"
    script.write_text(LATE)
    parallelism = {"dpReplicate": 2}
    job = RamJob(ranks, tmp_path / "broken", text, parallelism=parallelism)
    job.broken(1, 2, Fault("kill", step=5, rank=0), script=str(script))
    second = job.sound(2, 2, script=str(script))
    assert {m["step"] for m in second.said("resumed")} == {4}
    assert [line["step"] for line in job.metrics] == list(range(1, 10))
    assert job.losses == undisturbed(2, parallelism=parallelism).losses


@pytest.mark.parametrize("mesh", ["replicate", "hsdp"])
def test_survivors_rescue_the_last_step_where_every_shard_has_a_replica(
    ranks: Ranks, tmp_path: Path, text: Path, mesh: str
) -> None:
    size, parallelism = MESHES[mesh]
    whole = RamJob(ranks, tmp_path / "whole", text, every="0", parallelism=parallelism)
    whole.sound(1, size)
    assert not whole.folder.names(), "nothing is saved while nothing fails"
    job = RamJob(ranks, tmp_path / "broken", text, every="0", parallelism=parallelism)
    first = job.broken(1, size, Fault("kill", step=5, rank=1))
    assert [m["step"] for m in first.said("rescued")] == [4] * (size - 1), first.output
    assert sorted(job.folder.names()) == [(4, 1, rank) for rank in range(size) if rank != 1]
    second = job.broken(2, size, Fault("raise", step=7, rank=size - 1))
    assert [m["step"] for m in second.said("resumed")] == [4] * size
    assert [m["step"] for m in second.said("rescued")] == [6] * size, "whoever raises is a survivor, too"
    job.sound(3, size)
    assert job.final == {**whole.final, "round": 3}
    assert job.losses == whole.losses
    assert [line["step"] for line in job.metrics] == list(range(1, 10))


def test_a_damaged_copy_in_memory_is_passed_over_for_a_replica_an_older_step_and_storage(
    ranks: Ranks, tmp_path: Path, text: Path
) -> None:
    job = RamJob(ranks, tmp_path, text, parallelism={"dpShard": 2}, checkpoint={"every": 3, "keep": 3})
    job.broken(1, 2, Fault("kill", step=6, rank=1))
    assert sorted(job.folder.names()) == [(step, 1, rank) for step in (4, 5) for rank in (0, 1)]
    _flip(job.folder.path(5, 1, 1))
    second = job.broken(2, 2, Fault("kill", step=6, rank=1))
    assert [m["step"] for m in second.said("resumed")] == [4, 4]
    assert "the state of rank 1" in reasons(second)["CheckpointDamaged"]
    for step, round, rank in job.folder.names():
        if rank == 0:
            _flip(job.folder.path(step, round, rank))
    third = job.sound(3, 2)
    assert [m["step"] for m in third.said("resumed")] == [3, 3]


def test_a_damaged_copy_of_one_rank_is_taken_from_its_replica(
    ranks: Ranks, undisturbed: Undisturbed, tmp_path: Path, text: Path
) -> None:
    whole = undisturbed(2, parallelism={"dpReplicate": 2})
    job = RamJob(ranks, tmp_path / "broken", text, parallelism={"dpReplicate": 2})
    job.broken(1, 2, Fault("kill", step=6, rank=0))
    _flip(job.folder.path(5, 1, 0))
    second = job.sound(2, 2)
    assert [m["step"] for m in second.said("resumed")] == [5, 5]
    assert "another copy" in reasons(second)["CheckpointDamaged"]
    assert job.final == {**whole.final, "round": 2}


def test_a_state_that_does_not_fit_turns_memory_off_and_people_are_told(
    ranks: Ranks, tmp_path: Path, text: Path
) -> None:
    job = RamJob(ranks, tmp_path / "small", text, budget=budget(100 << 10))
    outcome = job.sound(1, 2)
    told = [m["message"] for m in outcome.said("event") if m["reason"] == "RamCheckpointsOff"]
    said = re.fullmatch(
        r"no checkpoints in memory: they need (\d+Mi) in each pod \(2 ranks\), but "
        r"spec\.checkpoint\.ram\.limit is 100Ki; set spec\.checkpoint\.ram: \{limit: (\d+Mi)\}",
        told[0],
    )
    assert said is not None, told
    assert said[1] == said[2]
    assert told == [told[0]] * 2, "the two ranks of the pod say the same, so that people read it once"
    assert job.folder.used() == 0
    assert job.final["step"] == 9
    limit = bytes_of(said[1])
    assert limit is not None
    advised = RamJob(ranks, tmp_path / "advised", text, budget=budget(limit))
    assert "RamCheckpointsOff" not in reasons(advised.sound(1, 2))
    assert {rank for _, _, rank in advised.folder.names()} == {0, 1}


def test_two_files_of_each_rank_take_turns(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    job = RamJob(ranks, tmp_path, text, parallelism={"dpShard": 2})
    job.broken(1, 2, Fault("kill", step=6, rank=1))
    before = {path.stat().st_ino for path in job.memory.glob("step-*/rank-*")}
    assert len(before) == 4
    job.broken(2, 2, Fault("kill", step=9, rank=0))
    after = list(job.memory.glob("step-*/rank-*"))
    assert {path.stat().st_ino for path in after} == before, "a new round writes into the files of the one before"
    for step, round, rank in job.folder.names():
        receipt = job.folder.receipt(step, round, rank)
        with job.folder.reading(step, round, rank) as file:
            assert checksum_of(file) == receipt.file.checksum
    assert sorted(job.folder.names()) == [(step, 2, rank) for step in (7, 8) for rank in (0, 1)]


def test_memory_is_saved_as_often_as_it_costs_a_hundredth(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    job = RamJob(ranks, tmp_path, text, every="", steps=30)
    job.sound(1, 2)
    steps = {step for step, _, _ in job.folder.names()}
    assert steps, "the first step is saved in any case"
    saved = [m["step"] for m in job.sound(2, 2).said("in-memory")]
    assert saved == []


def _flip(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(-100, 2)
        there = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([there[0] ^ 0xFF]))


@pytest.mark.parametrize("every", ["1", ""], ids=["each step", "as it is cheap"])
def test_a_users_loop_goes_on_from_memory_with_buffers_generators_and_loaders(
    ranks: Ranks, tmp_path: Path, every: str
) -> None:
    path = tmp_path / "train.py"
    source = SCRIPT.replace("random.random()", "random.Random(0).random()")
    source = source.replace(
        "import trainmaster as tm", "import trainmaster as tm\nfrom trainmaster.rank import injected_faults as faults"
    )
    path.write_text(source.replace("    optimizer.step()\n", "    faults.at_step(step)\n    optimizer.step()\n"))

    def world(name: str, number: int, faults: dict[str, str]) -> Outcome:
        memory = tmp_path / name / "memory"
        memory.mkdir(parents=True, exist_ok=True)
        env = {
            environment.CHECKPOINT_DIR: str(tmp_path / name / "checkpoints"),
            environment.ROUND: str(number),
            environment.JOB_UID: "job",
            environment.RAM_DIR: str(memory),
            environment.RAM_BUDGET: str(1 << 28),
            environment.RAM_EVERY: every,
            "LOCAL_WORLD_SIZE": "2",
        }
        return ranks.run(tmp_path / name, 2, {**env, **faults}, script=str(path), agent=True)

    whole = world("whole", 1, {})
    assert whole.codes == [0, 0], whole.output
    socket = tmp_path / "faults"
    with fault_socket(socket):
        fault = {environment.FAULTS: encode([Fault("kill", step=6, rank=1)]), environment.FAULT_SOCKET: str(socket)}
        first = world("broken", 1, fault)
    assert first.codes[1] == -9, first.output
    second = world("broken", 2, {})
    assert second.codes == [0, 0], second.output
    (resumed,) = {m["step"] for m in second.said("resumed")}
    assert {m["tier"] for m in second.said("resumed")} == {"ram"}
    assert resumed == 5 or not every, "it may be rare to save"
    for rank in (0, 1):
        expected = {step: loss for step, loss in lines(whole.output, rank).items() if step > resumed}
        assert lines(second.output, rank) == expected


def test_the_end_of_a_run_that_only_memory_had_comes_to_storage(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    job = RamJob(ranks, tmp_path, text, parallelism={"dpShard": 2})
    job.sound(1, 2)
    before = job.final
    shutil.rmtree(tmp_path / "checkpoints" / "step-9.r1")
    assert {m["tier"] for m in job.sound(2, 2).said("resumed")} == {"ram"}
    assert job.checkpoints() == {"step-9.r2"}
    job.folder.clear()
    third = job.round(3, 2, agent=True)
    assert {(m["step"], m["tier"]) for m in third.said("resumed")} == {(9, "storage")}
    assert job.final == {**before, "round": 3}


def test_a_folder_that_a_neighbour_removes_before_a_file_is_in_it_is_made_again(tmp_path: Path) -> None:
    folder, tries = tmp_path / "step-5.r1", []

    def act() -> str:
        tries.append(folder)
        if len(tries) < 3:
            folder.rmdir()
        (folder / "file").write_text("state")
        return "made"

    assert into(folder, act) == "made"
    assert (folder / "file").read_text() == "state"


def test_a_file_that_is_missing_itself_is_not_looked_for_without_end(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        into(tmp_path / "step-5.r1", lambda: os.replace(tmp_path / "nothing", tmp_path / "step-5.r1" / "file"))


def test_a_folder_that_a_neighbour_removes_while_it_is_looked_at_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks of a pod that start to save at the same time sweep the same folders."""
    folder = RamFolder(tmp_path, 1 << 20)
    removed = []

    def then(look: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def after_a_neighbour(path: Any) -> Any:
            if Path(path) != tmp_path:
                os.rmdir(path)
                removed.append(path)
            return look(path)

        return after_a_neighbour

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, then(getattr(os, name)))
    looks = [folder.names, partial(folder.sweep, 0), partial(sweep_prepared, folder), partial(_sweep, folder, 0)]
    for look in [*looks, folder.used]:
        (tmp_path / "step-4.r1").mkdir()
        look()
    assert len(removed) == 5
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_is_removed_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, is_dir, removed = tmp_path / "step-5.r1", Path.is_dir, []

    def is_dir_after_a_neighbour(path: Path) -> bool:
        if not removed:
            removed.append(path)
            path.rmdir()
        return is_dir(path)

    folder.mkdir()
    monkeypatch.setattr(Path, "is_dir", is_dir_after_a_neighbour)
    into(folder, (folder / "file").touch)
    assert removed == [folder]
    assert (folder / "file").exists()
