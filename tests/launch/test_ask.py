"""How a launcher's own parser is asked: when, how often, and what is made of an answer that is none."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from trainmaster.contract.launch import LaunchRefused, UnknownOption, parse
from trainmaster.contract.launch.own_parser import MARK
from trainmaster.contract.launch.own_parser_process import OwnParsers, name_of_answer

ANSWER = {"kind": "script", "name": "train.py", "args": ["--x"], "given": {}, "environment": {"ACCELERATE_X": "1"}}
LINE = ["accelerate", "launch", "--new_flag", "train.py", "--x"]


class Python:
    """A program in the place of an interpreter: prints an answer, and keeps how it was called."""

    def __init__(self, folder: Path, answer: dict[str, Any] | None = None, text: str = "") -> None:
        self.path = folder / "python"
        self._calls = folder / "calls"
        (folder / "answer").write_text(text or MARK + json.dumps(answer))
        self.path.write_text(f'#!/bin/sh\necho "$@" >> {self._calls}\necho something else\ncat {folder}/answer\n')
        self.path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    def parsers(self, keep: Path | None = None, asked: list[str] | None = None, **environ: str) -> OwnParsers:
        variables = {"PATH": os.environ["PATH"], **environ}
        asks = (asked if asked is not None else []).append
        return OwnParsers(variables, interpreter=lambda _: str(self.path), keep=str(keep or ""), asks=asks)


def test_what_the_table_reads_in_full_is_not_asked(tmp_path: Path) -> None:
    python = Python(tmp_path, ANSWER)
    assert parse(["torchrun", "--nproc-per-node=2", "t.py"], python.parsers().read).entry is not None
    assert python.calls == []


def test_an_option_that_is_in_no_table_and_torchruns_own_variables_are_asked(tmp_path: Path) -> None:
    python = Python(tmp_path, {**ANSWER, "files": {}})
    entry = {"kind": "script", "path": "train.py", "args": ["--x"]}
    assert parse(["torchrun", "--new-flag", "train.py", "--x"], python.parsers().read).entry == entry
    parse(["torchrun", "train.py"], python.parsers(PET_NPROC_PER_NODE="2").read)
    assert len(python.calls) == 2


def test_accelerates_variables_are_the_ranks(tmp_path: Path) -> None:
    assert parse(LINE, Python(tmp_path, ANSWER).parsers().read).environment == {"ACCELERATE_X": "1"}


def test_what_stands_before_a_launcher_stands_before_its_parser(tmp_path: Path) -> None:
    python = Python(tmp_path, ANSWER)
    command = parse(["nice", "-n", "1", *LINE], python.parsers(PATH=f"{tmp_path}:{os.environ['PATH']}").read)
    assert command.argv == ["nice", "-n", "1", "python", "train.py", "--x"]
    assert len(python.calls) == 1


def test_an_answer_is_kept_until_a_file_that_it_depends_on_changes(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("a")
    stamps = {str(config): config.stat().st_mtime_ns, str(tmp_path / "absent"): None}
    python = Python(tmp_path, {**ANSWER, "files": stamps})
    for _ in range(2):
        parse(LINE, python.parsers(tmp_path / "kept").read)
    assert len(python.calls) == 1
    os.utime(config, ns=(1, 1))
    parse(LINE, python.parsers(tmp_path / "kept").read)
    assert len(python.calls) == 2


def of_pod(folder: Path, slot: int) -> dict[str, str]:
    """The variables by which the pods of one job differ on one machine."""
    return {
        "TRAINMASTER_SLOT": str(slot),
        "TRAINMASTER_INCARNATION": "2",
        "TRAINMASTER_POD_UID": f"uid-{slot}",
        "TRAINMASTER_RAM_DIR": f"{folder}/ram-{slot}",
        "TMPDIR": f"{folder}/pod-{slot}/tmp",
    }


def test_the_pods_of_a_job_on_one_machine_share_an_answer(tmp_path: Path) -> None:
    python = Python(tmp_path, {**ANSWER, "files": {}})
    for slot in range(2):
        parse(LINE, python.parsers(tmp_path / "kept", **of_pod(tmp_path, slot)).read)
    assert len(python.calls) == 1


@pytest.mark.parametrize("name", ["HF_HOME", "ACCELERATE_USE_CPU", "PATH", "POD_NAME"])
def test_an_answer_is_not_taken_for_other_variables_that_a_launcher_may_read(name: str) -> None:
    one, other = ({**of_pod(Path("/run"), 0), name: value} for value in "ab")
    assert name_of_answer(["a"], one, "/", alone=True) != name_of_answer(["a"], other, "/", alone=True)


def test_an_answer_behind_a_shell_which_may_read_the_pods_number_is_for_this_pod_alone(tmp_path: Path) -> None:
    python = Python(tmp_path, {**ANSWER, "files": {}})
    python.path.rename(tmp_path / "bash")
    line = ["bash", "-lc", "accelerate launch --new_flag train.py --x"]
    for slot in range(2):
        path = f"{tmp_path}:{os.environ['PATH']}"
        parse(line, python.parsers(tmp_path / "kept", PATH=path, **of_pod(tmp_path, slot)).read)
    assert len(python.calls) == 2


def test_who_waits_is_told_before_a_parser_is_asked_but_not_of_a_kept_answer(tmp_path: Path) -> None:
    python, asked = Python(tmp_path, {**ANSWER, "files": {}}), []
    for _ in range(2):
        parse(LINE, python.parsers(tmp_path / "kept", asked).read)
    parse(["torchrun", "train.py"], python.parsers(tmp_path / "kept", asked).read)
    assert asked == ["accelerate launch"]


def test_who_waits_is_told_although_another_process_asks_already(tmp_path: Path) -> None:
    python, kept = Python(tmp_path, {**ANSWER, "files": {}}), tmp_path / "kept"
    parse(LINE, python.parsers(kept).read)
    next(kept.glob("*.json")).unlink()
    told = threading.Event()
    with open(next(kept.glob("*.lock")), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        parsers = OwnParsers(
            {"PATH": os.environ["PATH"]},
            interpreter=lambda _: str(python.path),
            keep=str(kept),
            asks=lambda _: told.set(),
        )
        waits = threading.Thread(target=parse, args=(LINE, parsers.read), daemon=True)
        waits.start()
        assert told.wait(60)
    waits.join(60)
    assert len(python.calls) == 2


def test_a_launchers_own_refusal_is_told_and_not_kept(tmp_path: Path) -> None:
    python = Python(tmp_path, {"refused": "argument --x: no such thing"})
    for _ in range(2):
        with pytest.raises(LaunchRefused, match="accelerate launch: argument --x: no such thing"):
            parse(LINE, python.parsers(tmp_path / "kept").read)
    assert len(python.calls) == 2


def test_without_the_package_torchruns_table_decides_and_accelerate_is_refused_by_name(tmp_path: Path) -> None:
    python = Python(tmp_path, {"missing": "torch"})
    with pytest.raises(UnknownOption, match="--new-flag"):
        parse(["torchrun", "--new-flag", "t.py"], python.parsers().read)
    with pytest.raises(LaunchRefused, match=r"torch is not installed for .*/python, which is to run the script"):
        parse(LINE, python.parsers().read)


def test_an_interpreter_that_answers_nothing_is_named_with_its_last_words(tmp_path: Path) -> None:
    python = Python(tmp_path, text="no answer")
    with pytest.raises(LaunchRefused, match=r"its own parser can't be run by .*/python"):
        parse(LINE, python.parsers().read)
