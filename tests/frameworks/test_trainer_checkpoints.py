"""From which checkpoint a Trainer goes on, with a stand-in for Trainer."""

from __future__ import annotations

import os
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.trainer_stand_in import Group, Trainer, cut, save, view
from trainmaster.agent.frameworks import trainer_checkpoints, training_mark
from trainmaster.agent.frameworks.huggingface import HUGGINGFACE
from trainmaster.agent.frameworks.trainer_checkpoints import View
from trainmaster.agent.frameworks.training_mark import Mark
from trainmaster.contract.wire import environment

Train = Callable[..., Any]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> type[Trainer]:
    """Trainer as a script of a job sees it, in a process that has just started."""
    monkeypatch.setenv(environment.JOB_UID, "a-job")
    monkeypatch.setattr(trainer_checkpoints, "_begun", {})
    made = type("Trainer", (Trainer,), {"train": Trainer.train})
    HUGGINGFACE.hooks["transformers.trainer"](types.SimpleNamespace(Trainer=made), None)  # type: ignore[arg-type]
    return made


def restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what the process knows."""
    monkeypatch.setattr(trainer_checkpoints, "_begun", {})


def began(make: type[Trainer], output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a first process of the job begin, and end."""
    assert make(output).train() is None
    restart(monkeypatch)


def test_a_run_that_was_cut_off_goes_on_from_its_newest_checkpoint(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    began(make, tmp_path, monkeypatch)
    save(tmp_path, 10)
    newest = save(tmp_path, 20)
    assert make(tmp_path).train() == str(newest)
    assert capsys.readouterr().err == "trainmaster: Trainer goes on from checkpoint-20\n"


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt", "trainer_state.json", "rng_state.pth"])
@pytest.mark.parametrize("given", [None, True, "the newest"])
def test_a_half_written_checkpoint_is_passed_over(
    tmp_path: Path,
    make: type[Trainer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str,
    given: Any,
) -> None:
    began(make, tmp_path, monkeypatch)
    whole = save(tmp_path, 10)
    cut(save(tmp_path, 20) / file)
    asked = str(tmp_path / "checkpoint-20") if given == "the newest" else given
    assert make(tmp_path).train(asked) == str(whole)
    words = "trainmaster: Trainer goes on from checkpoint-10, since checkpoint-20 is half written\n"
    assert capsys.readouterr().err == words


@pytest.mark.parametrize("name", ["stats.bin", "metrics.pt", "my_optimizer.pt", "weights.pth", "faiss.index.json"])
@pytest.mark.parametrize("given", [None, True, "the newest"])
def test_files_that_the_script_adds_to_a_checkpoint_are_not_judged(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch, given: Any, name: str
) -> None:
    began(make, tmp_path, monkeypatch)
    newest = save(tmp_path, 10)
    (newest / name).write_bytes(bytes(40))
    assert make(tmp_path).train(str(newest) if given == "the newest" else given) == str(newest)


def test_the_first_process_of_a_job_takes_nothing_that_its_script_does_not_ask_for(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job has left a checkpoint of a later step."""
    stale = save(tmp_path, 900)
    for path in (stale, *stale.iterdir()):
        os.utime(path, (1, 1))
    assert make(tmp_path).train() is None
    restart(monkeypatch)
    assert make(tmp_path).train() is None, "nor does a later one, before this job has saved"
    own = save(tmp_path, 10)
    restart(monkeypatch)
    assert make(tmp_path).train() == str(own)
    restart(monkeypatch)
    assert make(tmp_path).train(True) == str(stale), "where the script asks for the newest of all"


def test_what_a_script_says_counts(tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    began(make, tmp_path / "out", monkeypatch)
    save(tmp_path / "out", 10)
    elsewhere = save(tmp_path / "pretrained", 5)
    cut(elsewhere / "optimizer.pt")
    assert make(tmp_path / "out").train(False) is False
    for given in (str(elsewhere), str(tmp_path / "out" / "checkpoint-10"), str(tmp_path / "out" / "best")):
        assert make(tmp_path / "out").train(given) == given
    restart(monkeypatch)
    assert make(tmp_path / "out").train(trial="a trial") is None
    searching = make(tmp_path / "out")
    searching.hp_search_backend = "optuna"
    assert searching.train() is None


def train_folds(make: type[Trainer], output: Path) -> None:
    """Let a process train two folds into one folder."""
    for fold in range(2):
        assert make(output).train() is None, f"fold {fold}"
        shutil.rmtree(output / "checkpoint-20", ignore_errors=True)
        save(output, 20)


def test_a_restart_of_a_script_that_trains_several_times_into_a_folder_begins_again_and_says_so(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first fold would go on from the checkpoint of the second."""
    train_folds(make, tmp_path)
    assert not capsys.readouterr().err
    words = f"trainmaster: Trainer begins again, since this script trains several times into {tmp_path}\n"
    for round in (2, 3):
        restart(monkeypatch)
        train_folds(make, tmp_path)
        assert capsys.readouterr().err == words, f"once in round {round}"
    newest = str(tmp_path / "checkpoint-20")
    restart(monkeypatch)
    assert make(tmp_path).train(True) == newest, "where the script asks for it"
    assert make(tmp_path).train(newest) == newest


def test_a_second_script_that_trains_into_the_folder_in_the_same_round_begins_by_itself(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell script runs one after the other, and both have Trainer's default folder. Nothing has failed."""
    words = f"trainmaster: Trainer begins again, since this script trains several times into {tmp_path}\n"
    for round, said in (("1", ""), ("2", words)):
        monkeypatch.setenv(environment.ROUND, round)
        for _ in range(2):
            restart(monkeypatch)
            assert make(tmp_path).train() is None
            (tmp_path / "checkpoint-20").exists() or save(tmp_path, 20)
        assert capsys.readouterr().err == said
    restart(monkeypatch)
    assert make(tmp_path).train(True) == str(tmp_path / "checkpoint-20"), "where the script asks for it"


def test_each_round_goes_on_from_the_checkpoints_of_all_rounds_before_it(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark knows since when the job trains, although each round writes it again, later than the checkpoint."""
    for round in ("1", "2", "3"):
        monkeypatch.setenv(environment.ROUND, round)
        restart(monkeypatch)
        assert make(tmp_path).train() == (None if round == "1" else str(tmp_path / "checkpoint-20")), f"round {round}"
        (tmp_path / "checkpoint-20").exists() or save(tmp_path, 20)
        os.utime(training_mark._paths(tmp_path)[0], (2**32, 2**32))


def test_a_script_that_was_cut_off_between_its_trainings_goes_on_with_the_first(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    began(make, tmp_path, monkeypatch)
    first = save(tmp_path, 40)
    assert make(tmp_path).train() == str(first)
    assert make(tmp_path).train() is None, "the second one of this process"
    restart(monkeypatch)
    assert make(tmp_path).train() is None


@pytest.mark.parametrize("asked", [True, "the newest"])
def test_a_second_training_that_the_script_lets_go_on_is_the_same_training(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch, asked: Any
) -> None:
    trainer = make(tmp_path)
    assert trainer.train() is None
    newest = save(tmp_path, 40)
    assert trainer.train(asked if asked is True else str(newest)) == str(newest)
    restart(monkeypatch)
    assert make(tmp_path).train() == str(newest)


def test_trainings_into_folders_of_their_own_and_trials_are_not_several(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    searching = make(tmp_path / "fold-0")
    searching.hp_search_backend = "optuna"
    folds = [make(tmp_path / f"fold-{fold}") for fold in range(2)]
    for trainer in (searching, searching, *folds):
        assert trainer.train() is None
    saved = [save(tmp_path / f"fold-{fold}", 10) for fold in range(2)]
    restart(monkeypatch)
    assert [trainer.train() for trainer in folds] == [str(path) for path in saved]


def test_without_a_whole_checkpoint_it_begins_again_and_says_so(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    began(make, tmp_path, monkeypatch)
    cut(save(tmp_path, 10) / "model.safetensors")
    assert make(tmp_path).train(str(tmp_path / "checkpoint-10")) is None
    assert capsys.readouterr().err == "trainmaster: Trainer begins again, since checkpoint-10 is half written\n"


@pytest.mark.parametrize("given", [True, "checkpoint-10"])
def test_a_first_process_that_asks_for_a_checkpoint_where_there_is_none_is_left_to_trainer(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch, given: Any
) -> None:
    """Trainer refuses it, and a restart must not begin instead."""
    asked = given if given is True else str(tmp_path / given)
    for _ in range(2):
        assert make(tmp_path).train(asked) == asked
        restart(monkeypatch)


@pytest.mark.parametrize("given", [True, "checkpoint-10", "pretrained"])
def test_a_training_after_one_that_trainer_refused_is_the_first(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch, given: Any
) -> None:
    """Scripts catch the error, and train without a checkpoint."""
    trainer = make(tmp_path)
    trainer.train(given if given is True else str(tmp_path / given))
    trainer.train()
    saved = save(tmp_path, 20)
    restart(monkeypatch)
    assert make(tmp_path).train() == str(saved)


@pytest.mark.parametrize(("given", "which"), [(True, "checkpoint"), ("checkpoint-10", "checkpoint-10")])
def test_a_restart_before_the_first_checkpoint_begins_again_and_says_so(
    tmp_path: Path,
    make: type[Trainer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: Any,
    which: str,
) -> None:
    began(make, tmp_path, monkeypatch)
    assert make(tmp_path).train(given if given is True else str(tmp_path / given)) is None
    words = f"trainmaster: Trainer begins again, since there is no {which} in {tmp_path}\n"
    assert capsys.readouterr().err == words


def test_a_rank_that_sees_no_mark_does_what_the_others_do(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some ranks see a mark that others have no access to. All begin, or Trainer refuses in all."""
    for begun, expected in ((False, True), (True, None)):
        monkeypatch.setitem(sys.modules, "torch.distributed", Group(View(begun=begun)))
        assert make(tmp_path, ranks=2).train(True) is expected


def test_a_checkpoint_without_its_last_file_is_named_where_the_script_asks_for_the_newest(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    began(make, tmp_path, monkeypatch)
    (save(tmp_path, 10) / "trainer_state.json").unlink()
    assert make(tmp_path).train(True) is None
    assert capsys.readouterr().err == "trainmaster: Trainer begins again, since checkpoint-10 is half written\n"


def test_checkpoints_without_an_optimizer_are_not_taken_unless_the_script_asks_for_them(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With save_only_model, Trainer would go on with a new optimizer, and from the first learning rate."""
    began(make, tmp_path, monkeypatch)
    saved = save(tmp_path, 10)
    (saved / "optimizer.pt").unlink()
    trainer = make(tmp_path)
    trainer.args.save_only_model = True
    assert trainer.train() is None
    words = "trainmaster: Trainer begins again, since its checkpoints have no optimizer (save_only_model)\n"
    assert capsys.readouterr().err == words
    assert trainer.train(True) == str(saved)


def test_all_ranks_go_on_from_a_checkpoint_that_each_of_them_has(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    began(make, tmp_path, monkeypatch)
    for step in (10, 20, 30):
        save(tmp_path, step, ranks=2)
    monkeypatch.setitem(sys.modules, "torch.distributed", Group(view(10, 20)))
    assert make(tmp_path, ranks=2).train() == str(tmp_path / "checkpoint-20")
    restart(monkeypatch)
    monkeypatch.setitem(sys.modules, "torch.distributed", Group(view()))
    capsys.readouterr()
    assert make(tmp_path, ranks=2).train() is None
    words = f"some ranks do not see its checkpoints in {tmp_path}, which must be on a volume of all pods"
    assert capsys.readouterr().err == f"trainmaster: Trainer begins again, since {words}\n"


def test_all_ranks_begin_again_if_one_knows_that_the_script_trains_several_times(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    began(make, tmp_path, monkeypatch)
    save(tmp_path, 10, ranks=2)
    monkeypatch.setitem(sys.modules, "torch.distributed", Group(view(10, several=True)))
    assert make(tmp_path, ranks=2).train() is None


def test_the_output_folder_is_empty_until_trainer_saves(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """run_clm.py refuses a folder that has files but no checkpoint."""
    output = tmp_path / "out"
    for _ in range(2):
        make(output).train()
    assert not list(output.iterdir())
    assert [path.name for path in tmp_path.iterdir() if path != output] == [".out.trainmaster-a-job"]


def test_folders_of_the_same_parent_have_a_mark_each(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    began(make, tmp_path / "a", monkeypatch)
    save(tmp_path / "a", 10)
    save(tmp_path / "b", 10)
    assert make(tmp_path / "a").train() is not None
    assert make(tmp_path / "b").train() is None


def test_a_folder_is_the_same_by_each_of_its_names(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod's own link to a folder on a volume is lost with the pod, and so would be a mark beside the link."""
    volume = tmp_path / "volume" / "out"
    volume.mkdir(parents=True)
    (tmp_path / "link").symlink_to(volume)
    began(make, tmp_path / "link", monkeypatch)
    saved = save(volume, 10)
    assert make(volume).train() == str(saved)


@pytest.mark.parametrize("reason", ["the root of a volume", "a parent that cannot be written to"])
def test_a_mark_that_cannot_lie_beside_the_folder_lies_in_it(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    output = tmp_path / ("out" if reason == "the root of a volume" else "o" * 250)  # too long with more before it
    monkeypatch.setattr(Path, "is_mount", lambda path: path == output and reason == "the root of a volume")
    began(make, output, monkeypatch)
    assert list(tmp_path.iterdir()) == [output]
    saved = save(output, 10)
    assert make(output).train() == str(saved)


def test_a_training_needs_no_mark(tmp_path: Path, make: type[Trainer]) -> None:
    (tmp_path / "file").touch()
    for _ in range(2):
        assert make(tmp_path / "file" / "out").train() is None, "Trainer says that it can save nothing there"


def test_no_rank_writes_the_mark_before_all_have_read_it(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow rank would take the first training of its own round for one of an earlier process."""
    read = []

    class Slow(Group):
        def all_gather_object(self, found: list[Any], own: Any) -> None:
            read.append(training_mark.read(tmp_path))
            super().all_gather_object(found, own)

    monkeypatch.setitem(sys.modules, "torch.distributed", Slow(View()))
    trainer = make(tmp_path, ranks=2)
    for _ in range(3):
        trainer.train()
    assert read[0] == Mark()
    assert [mark.several for mark in read] == [False, False, True]


@pytest.mark.parametrize(("rank", "written"), [(0, True), (1, False)])
def test_only_the_first_rank_of_a_pod_writes_the_mark(
    tmp_path: Path, make: type[Trainer], rank: int, written: bool
) -> None:
    for _ in range(2):
        make(tmp_path, rank=rank).train()
    assert training_mark.read(tmp_path).several is written


def test_a_checkpoint_without_the_generators_of_a_rank_is_taken_only_if_there_is_no_other(
    tmp_path: Path, make: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    began(make, tmp_path, monkeypatch)
    (save(tmp_path, 20, ranks=2) / "rng_state_1.pth").unlink()
    assert make(tmp_path, ranks=2).train() == str(tmp_path / "checkpoint-20")
    save(tmp_path, 10, ranks=2)
    restart(monkeypatch)
    assert make(tmp_path, ranks=2).train() == str(tmp_path / "checkpoint-10")
