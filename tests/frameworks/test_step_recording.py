"""How ranks of a script record their steps: with a stand-in of a profiler, and the folder that they share."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import socket
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainmaster.agent import frameworks
from trainmaster.agent.frameworks.framework import Profiler
from trainmaster.agent.shell import profile_commands
from trainmaster.contract.wire import profile_records, profile_request
from trainmaster.contract.wire.progress_record import Phase
from trainmaster.rank.step_recording import CUT_OFF, Place, Recorder, name_of_rank

IDENTITY = "0123456789ab"
LATER = "ba9876543210"
XPLANE = f"{socket.gethostname()}.xplane.pb"


class Broken(RuntimeError): ...


class Tool:
    """A profiler that writes the steps that it was told of. `breaks`: the functions that fail."""

    def __init__(self, breaks: tuple[str, ...] = ()) -> None:
        self.breaks = breaks
        self.running = False
        self.named: list[int] = []

    def start(self, folder: str) -> list[int]:
        self._fail("start")
        assert os.listdir(folder) == []
        self.running = True
        return self.named

    def stop(self, named: list[int], folder: str) -> None:
        self.running = False
        self._fail("stop")
        place = Path(folder, "plugins", "profile", "2026_11_28_12_00_00")
        place.mkdir(parents=True)
        (place / XPLANE).write_text(json.dumps(named))

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        self._fail("step")
        yield
        self.named.append(number)

    def _fail(self, name: str) -> None:
        if name in self.breaks:
            raise Broken(f"no {name}\nhere")


class Rank:
    """A rank that has no process of its own."""

    def __init__(self, folder: Path, rank: int = 0, of: int = 2, round: int = 1, shared: bool = True, **tool: Any):
        self.tool = Tool(**tool)
        profiler = Profiler("json", self.tool.start, self.tool.stop, self.tool.step)
        self.recorder = Recorder("Some", profiler, Place(folder, rank, range(of), round, shared))
        self.phases: list[Phase] = []
        self.step = 0

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.step += 1
            self.recorder.completed(self.step, self.phases.append)


def train(ranks: list[Rank], steps: int) -> None:
    """All ranks take steps in turn."""
    for _ in range(steps):
        for rank in ranks:
            rank.steps(1)


def records(folder: Path) -> dict[str, Any]:
    found = sorted(path for path in (folder / "profile").rglob("*") if path.is_file())
    return {str(path.relative_to(folder / "profile")): json.loads(path.read_text()) for path in found}


def test_all_ranks_record_the_same_steps_and_the_last_one_removes_the_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [Rank(tmp_path, 0), Rank(tmp_path, 1)]
    train(ranks, 3)
    ranks[0].steps(1)  # it is ahead when the request comes
    profile_request.ask(tmp_path, 3, IDENTITY)
    ranks[1].steps(1)
    train(ranks, 3)
    ranks[0].steps(1)
    assert (tmp_path / profile_request.FILE).exists(), "rank 1 still has to record"
    ranks[1].steps(1)
    train(ranks, 5)
    session = "steps-6-8.r1"
    place = f"{session}/plugins/profile/{session}"
    assert records(tmp_path) == {f"{place}/rank-00000.xplane.pb": [6, 7, 8], f"{place}/rank-00001.xplane.pb": [6, 7, 8]}
    assert sorted(os.listdir(tmp_path)) == ["profile"]
    assert os.listdir(tmp_path / "profile") == [session]
    out, err = capsys.readouterr()
    assert out.startswith("profile of steps 6 to 8: the profiler of Some has written its records into ")
    assert f"{tmp_path}/profile/{session}, which tensorboard --logdir opens" in out
    assert (out.count("\n"), err) == (1, "")
    assert ranks[0].phases == [Phase.EVAL, Phase.STEP] * 2, "a profiler may take its time"


def test_a_rank_that_is_late_records_as_many_steps(tmp_path: Path) -> None:
    ranks = [Rank(tmp_path, 0), Rank(tmp_path, 1)]
    profile_request.ask(tmp_path, 2, IDENTITY)
    ranks[0].steps(6)
    ranks[1].step = 10
    ranks[1].steps(6)
    assert list(records(tmp_path).values()) == [[3, 4], [12, 13]]


def test_a_request_that_comes_before_the_first_step_is_kept_and_a_step_that_is_told_twice_counts_once(
    tmp_path: Path,
) -> None:
    profile_request.ask(tmp_path, 2, IDENTITY)
    rank = Rank(tmp_path, of=1)
    for step in (1, 1, 2, 2, 3, 3, 4, 4):
        rank.recorder.completed(step, rank.phases.append)
    assert list(records(tmp_path).values()) == [[3, 4]]


def test_steps_that_are_counted_by_fours_end_after_the_last_one(tmp_path: Path) -> None:
    profile_request.ask(tmp_path, 5, IDENTITY)
    rank = Rank(tmp_path, of=1)
    for step in range(4, 40, 4):
        rank.recorder.completed(step, rank.phases.append)
    assert list(records(tmp_path).values()) == [[9, 13]]


def test_a_second_request_is_recorded_after_the_first(tmp_path: Path) -> None:
    rank = Rank(tmp_path, of=1)
    profile_request.ask(tmp_path, 2, IDENTITY)
    rank.steps(3)
    profile_request.ask(tmp_path, 1, LATER)  # while the first is recorded
    rank.steps(5)
    assert [name.partition("/")[0] for name in records(tmp_path)] == ["steps-3-4.r1", "steps-7-7.r1"]
    assert not (tmp_path / profile_request.FILE).exists()


def test_a_request_that_has_not_begun_survives_a_restart_of_all_ranks(tmp_path: Path) -> None:
    profile_request.ask(tmp_path, 2, IDENTITY)
    train([Rank(tmp_path, 0), Rank(tmp_path, 1)], 1)
    train([Rank(tmp_path, 0, round=2), Rank(tmp_path, 1, round=2)], 9)
    assert [name.partition("/")[0] for name in records(tmp_path)] == ["steps-3-4.r2"] * 2


def test_a_restart_while_steps_are_recorded_ends_the_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile_request.ask(tmp_path, 4, IDENTITY)
    first = Rank(tmp_path, 0)
    first.steps(7)
    killed = Rank(tmp_path, 1)
    killed.steps(4)
    atexit.unregister(killed.recorder._at_exit)
    assert capsys.readouterr().err == ""
    ranks = [Rank(tmp_path, 0, round=2), Rank(tmp_path, 1, round=2)]
    train(ranks, 9)
    assert capsys.readouterr().err.splitlines() == [f"trainmaster: rank 1 records no steps: {CUT_OFF}"]
    assert list(records(tmp_path).values()) == [[3, 4, 5, 6]], "what rank 0 had recorded"
    assert not (tmp_path / profile_request.FILE).exists()
    assert not ranks[0].phases
    assert not ranks[1].phases


def test_a_second_program_of_a_rank_does_not_record_again(tmp_path: Path) -> None:
    profile_request.ask(tmp_path, 2, IDENTITY)
    Rank(tmp_path, 0).steps(5)
    again = Rank(tmp_path, 0)
    again.steps(5)
    assert not again.phases
    assert (tmp_path / profile_request.FILE).exists(), "for rank 1"


@pytest.mark.parametrize("breaks", ["start", "stop", "step"])
def test_a_profiler_that_fails_is_told_once_and_is_not_left_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], breaks: str
) -> None:
    ranks = [Rank(tmp_path, 0, breaks=(breaks,)), Rank(tmp_path, 1)]
    profile_request.ask(tmp_path, 2, IDENTITY)
    train(ranks, 9)
    assert capsys.readouterr().err == (
        "trainmaster: rank 0 records no steps: recording with the profiler of Some has failed, and the training goes "
        f"on: Broken: no {breaks} here\n"
    )
    assert not ranks[0].tool.running
    assert ranks[0].phases[-1:] == [Phase.STEP]
    assert list(records(tmp_path).values()) == [[3, 4]], "rank 1's"
    assert not (tmp_path / profile_request.FILE).exists()


def test_a_profiler_of_a_package_that_the_script_has_not_imported_is_not_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = Tool()
    profiler = Profiler("no_such_module", tool.start, tool.stop, tool.step)
    recorder = Recorder("Some", profiler, Place(tmp_path, 0, range(1), 1, True))
    profile_request.ask(tmp_path, 2, IDENTITY)
    for step in range(1, 6):
        recorder.completed(step, lambda _: None)
    assert "rank 0 records no steps: the script has not imported no_such_module" in capsys.readouterr().err
    assert not (tmp_path / profile_request.FILE).exists()


def test_a_folder_that_cannot_be_written_does_not_end_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile").touch()
    profile_request.ask(tmp_path, 2, IDENTITY)
    Rank(tmp_path).steps(9)
    assert len(capsys.readouterr().err.splitlines()) == 2, "said once"


@pytest.mark.parametrize(
    "content", ["", "3", f"0 {IDENTITY}", f"101 {IDENTITY}", "3 ../../other", f"x {IDENTITY}", "\0"]
)
def test_a_file_that_is_no_request_is_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / profile_request.FILE).write_text(content)
    rank = Rank(tmp_path)
    rank.steps(9)
    assert (rank.phases, os.listdir(tmp_path)) == ([], [profile_request.FILE])


def test_a_script_that_ends_in_the_midst_keeps_the_steps_that_were_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile_request.ask(tmp_path, 9, IDENTITY)
    rank = Rank(tmp_path, of=1)
    rank.steps(5)
    rank.recorder._at_exit(os.getpid() + 1)  # in a worker that was forked
    assert rank.tool.running
    rank.recorder._at_exit(os.getpid())
    assert capsys.readouterr().out.startswith("profile of steps 3 to 5: ")
    assert list(records(tmp_path).values()) == [[3, 4, 5]]
    assert not (tmp_path / profile_request.FILE).exists()


def test_a_script_that_ends_in_the_first_recorded_step_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile_request.ask(tmp_path, 9, IDENTITY)
    rank = Rank(tmp_path, of=1)
    rank.steps(2)
    rank.recorder._at_exit(os.getpid())
    assert "rank 0 records no steps: the process ended within the first of the steps" in capsys.readouterr().err
    assert (records(tmp_path), rank.tool.running) == ({}, False)


@pytest.mark.parametrize("is_method", [False, True])
def test_a_script_that_starts_the_profiler_itself_ends_the_recording_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_method: bool
) -> None:
    """Only one can record: torch would cancel one of them without a word, and JAX would raise in the script."""
    rank, began = Rank(tmp_path, of=1), []

    class Session:
        def begin(self, *words: str) -> str:
            assert not rank.tool.running
            began.extend(words)
            return "begun"

    package, script = types.ModuleType("a_profiler"), types.ModuleType("a_script")
    package.Session, package.start = Session, Session().begin  # type: ignore[attr-defined]
    script.start = package.start  # type: ignore[attr-defined]
    for module in (package, script):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    name = "Session.begin" if is_method else "start"
    starts = {"a_profiler": name, "not_imported": "start", "not_imported_either": "Session.begin"}
    rank.recorder._profiler = replace(rank.recorder._profiler, starts=starts)
    before = Session.begin, package.start, script.start  # type: ignore[attr-defined]
    profile_request.ask(tmp_path, 9, IDENTITY)
    rank.steps(5)
    assert rank.tool.running
    start = Session().begin if is_method else script.start  # type: ignore[attr-defined]
    assert (start("here"), began) == ("begun", ["here"])
    assert "rank 0 records no steps: the script has started the profiler itself" in capsys.readouterr().err
    assert (Session.begin, package.start, script.start) == before  # type: ignore[attr-defined]
    rank.steps(9)
    assert records(tmp_path) == {}
    assert not (tmp_path / profile_request.FILE).exists()


def collected(folder: Path, identity: str = IDENTITY) -> tuple[dict[str, Any], bytes]:
    output = io.BytesIO()
    profile_commands.collect(folder, identity, 0, output)
    header, _, rest = output.getvalue().partition(b"\n")
    return json.loads(header), rest


def test_a_pod_keeps_its_records_until_they_are_fetched(tmp_path: Path) -> None:
    ranks = [Rank(tmp_path, 0, shared=False), Rank(tmp_path, 1, shared=False, breaks=("stop",))]
    profile_request.ask(tmp_path, 2, IDENTITY)
    assert collected(tmp_path) == ({"waiting": True, "marks": {}, "files": []}, b"")
    train(ranks, 3)
    header, _ = collected(tmp_path)
    assert (header["waiting"], header["marks"]["0"]["state"], header["files"]) == (True, "begun", [])
    train(ranks, 2)
    header, rest = collected(tmp_path)
    assert (header["waiting"], header["files"], rest) == (False, [["rank-00000.xplane.pb", 6]], b"[3, 4]")
    assert [header["marks"][rank]["state"] for rank in ("0", "1")] == ["done", "failed"]
    profile_commands.withdraw(tmp_path, IDENTITY)
    assert (os.listdir(tmp_path), os.listdir(tmp_path / "profile")) == (["profile"], [])


def test_a_request_that_is_taken_back_while_it_is_recorded_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = Rank(tmp_path, of=1, shared=False)
    profile_request.ask(tmp_path, 4, IDENTITY)
    rank.steps(4)
    profile_commands.withdraw(tmp_path, IDENTITY)
    rank.steps(9)
    assert not rank.tool.running
    assert (os.listdir(tmp_path), os.listdir(tmp_path / "profile")) == (["profile"], [])
    assert capsys.readouterr().err == ""


def test_only_the_own_request_is_taken_away(tmp_path: Path) -> None:
    path = tmp_path / profile_request.FILE
    profile_request.ask(tmp_path, 2, LATER)
    profile_request.take_away(path, IDENTITY)
    assert profile_request.read(path) == profile_request.Request(2, LATER)
    profile_request.take_away(path, LATER)
    profile_request.take_away(path, LATER)
    assert os.listdir(tmp_path) == []


def test_files_of_two_ranks_on_one_machine_have_two_names() -> None:
    assert name_of_rank(XPLANE, 3) == "rank-00003.xplane.pb"
    assert name_of_rank("17.pt.trace.json.gz", 12) == "rank-00012.17.pt.trace.json.gz"
    assert profile_records.place_of("rank-00012.17.pt.trace.json.gz", "s") == "rank-00012.17.pt.trace.json.gz"
    assert profile_records.place_of("rank-00003.xplane.pb", "s") == "plugins/profile/s/rank-00003.xplane.pb"
    assert profile_records.place_of("rank-00003.events.out", "s") is None


def test_which_frameworks_have_a_profiler() -> None:
    modules = {one.name: one.profiler and one.profiler.module for one in frameworks.ALL}
    assert modules == {
        "Trainmaster": None,
        "XGBoost": None,
        "TensorFlow": "tensorflow",
        "JAX": "jax",
        "Horovod": "horovod",
        **dict.fromkeys(("PyTorch", "HuggingFace", "DeepSpeed"), "torch"),
    }


@pytest.mark.parametrize(
    ("framework", "module", "calls"),
    [
        ("TensorFlow", "tensorflow", ["start /here", "Trace step {'step_num': 7, '_r': 1}", "stop"]),
        ("Horovod", "tensorflow", ["start /here", "Trace step {'step_num': 7, '_r': 1}", "stop"]),
        ("JAX", "jax", ["start_trace /here", "StepTraceAnnotation step {'step_num': 7}", "stop_trace"]),
    ],
)
def test_what_is_called_of_a_framework(
    monkeypatch: pytest.MonkeyPatch, framework: str, module: str, calls: list[str]
) -> None:
    told: list[str] = []

    def function(name: str) -> Any:
        return lambda *args, **kwargs: told.append(" ".join([name, *args, *([str(kwargs)] if kwargs else [])]))

    names = ("start", "stop", "Trace", "start_trace", "stop_trace", "StepTraceAnnotation")
    profiler = types.SimpleNamespace(**{name: function(name) for name in names})
    profiler.experimental = profiler
    monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(profiler=profiler))  # type: ignore[arg-type]
    for name in (f"{module}.profiler", f"horovod.{module}"):
        monkeypatch.setitem(sys.modules, name, profiler)  # type: ignore[arg-type]
    found = frameworks.find(framework).profiler
    assert found is not None
    handle = found.start("/here")
    found.step(7)
    found.stop(handle, "/here")
    assert told == calls


def test_a_mark_of_a_newer_release_is_read_without_what_is_not_known_here(tmp_path: Path) -> None:
    state = tmp_path / "profile" / f".{IDENTITY}"
    state.mkdir(parents=True)
    (state / "rank-00003").write_text('{"state": "done", "round": 2, "words": "steps 4 to 6", "bytes": 5}')
    assert profile_records.read_marks(tmp_path, IDENTITY) == {3: profile_records.Mark("done", 2, "steps 4 to 6")}


def test_a_mark_that_cannot_be_read_is_named_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profile_commands.fault_protocol, "folder", lambda pod_uid: tmp_path)
    state = tmp_path / "profile" / f".{IDENTITY}"
    state.mkdir(parents=True)
    (state / "rank-00003").write_text('{"progress": 0.5}')
    assert profile_commands.command(["collect", IDENTITY, "0"]) == 1
    assert "rank-00003 does not say how far a rank is" in capsys.readouterr().err
