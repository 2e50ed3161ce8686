from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import RecordWriter

from tests.trainer.job import Job
from tests.trainer.ranks import Ranks
from trainmaster.contract.config import LoggersConfig
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.errors import ConfigError
from trainmaster.loggers import Loggers

ASKED = LoggersConfig.model_validate({"tensorBoard": {}})


def events(folder: Path) -> list[Event]:
    """Of all event files of a run, in the order in which they were begun: 8 bytes of length, 4 of its checksum, the
    record, 4 of its checksum."""
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*"), key=lambda path: path.stat().st_ctime_ns):
        raw = path.read_bytes()
        while raw:
            length = int.from_bytes(raw[:8], "little")
            found.append(Event.FromString(raw[12 : 12 + length]))
            raw = raw[16 + length :]
    return found


def scalars(folder: Path, name: str) -> dict[int, float]:
    """By step, as TensorBoard shows them: a file that begins at a step takes the place of what was from there on."""
    found: dict[int, float] = {}
    for event in events(folder):
        if event.HasField("session_log"):
            found = {step: value for step, value in found.items() if step < event.step}
        for value in event.summary.value:
            if value.tag == name:
                found[event.step] = value.simple_value
    return found


def test_the_reader_of_these_tests_reads_what_the_library_writes(tmp_path: Path) -> None:
    writer = RecordWriter(str(tmp_path / "events.out.tfevents.1"))
    writer.write(Event(step=7).SerializeToString())
    writer.close()
    assert [event.step for event in events(tmp_path)] == [7]


def test_without_loggers_nothing_is_imported_or_written(tmp_path: Path) -> None:
    loggers = Loggers(None, tmp_path)
    loggers.begin(0)
    loggers.step({"step": 1, "loss": 2.0, "tokens": 1, "seconds": 1.0})
    loggers.close()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match=r"loggers.tensorBoard needs the package tensorboardX in the image"):
        Loggers(ASKED, tmp_path)


def test_a_run_without_a_folder_is_told_where_one_can_be_named() -> None:
    with pytest.raises(ConfigError, match=r"loggers.tensorBoard.directory would name one"):
        Loggers(ASKED, None)


def test_a_process_that_begins_in_the_same_second_keeps_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorboardX.event_file_writer.time.time", lambda: 1.7e9)
    for step in (1, 2):
        loggers = Loggers(ASKED, tmp_path)
        loggers.begin(step - 1)
        loggers.step({"step": step, "loss": float(step), "tokens": 1, "seconds": 1.0})
        loggers.close()
    assert scalars(tmp_path / "tensorboard", "train/loss") == {1: 1.0, 2: 2.0}


class FullDisk:
    def __init__(self, **_: object) -> None:
        pass

    def add_scalar(self, *_: object, **__: object) -> None:
        raise OSError("No space left on device")


def test_what_cant_be_written_is_said_once_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorboardX.SummaryWriter", FullDisk)
    said: list[str] = []
    loggers = Loggers(ASKED, tmp_path, lambda reason, message: said.append(f"{reason}: {message}"))
    loggers.begin(0)
    for step in (1, 2):
        loggers.step({"step": step, "loss": 1.0, "tokens": 1, "seconds": 1.0})
    loggers.close()
    assert said == [f"LoggerFailed: nothing more for TensorBoard in {tmp_path}/tensorboard: No space left on device"]


def test_a_folder_that_cant_be_made_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    asked = LoggersConfig.model_validate({"tensorBoard": {"directory": str(file / "here")}})
    with pytest.raises(ConfigError, match=r"loggers.tensorBoard.directory: .*file/here can't be written to"):
        Loggers(asked, None).begin(0)


@pytest.mark.processes
def test_a_stopped_and_resumed_run_is_one_curve(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    data = {"path": str(text)}
    job = Job(ranks, tmp_path, text, loggers={"tensorBoard": {}}, evaluation={"every": 4, "data": data})
    first = job.round(1, agent=True, stop_at=5, stop_bound=1)
    assert first.codes == [ExitCode.SAVED, ExitCode.SAVED], first.output
    assert job.round(2, agent=True).codes == [0, 0]
    told = scalars(tmp_path / "tensorboard", "train/loss")
    assert told == pytest.approx(job.losses, rel=1e-6)
    assert sorted(told) == list(range(1, 10))
    assert sorted(scalars(tmp_path / "tensorboard", "evaluation/loss")) == [4, 8, 9]
    assert set(scalars(tmp_path / "tensorboard", "train/tokens_per_second")) == set(told)
