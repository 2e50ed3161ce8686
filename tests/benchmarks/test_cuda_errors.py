"""What `make cuda` says of a device that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cuda import child, parity, programme, speed, works
from benchmarks.cuda.programme import NotHere, Numbers, Part, Row, Setting

ILLEGAL_ACCESS = """Traceback (most recent call last):
  File "loop.py", line 1, in step
torch.AcceleratorError: CUDA error: an illegal memory access was encountered
Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/ for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

"""


def test_the_last_words_of_an_error_of_cuda_are_those_that_name_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(ILLEGAL_ACCESS)
    said = child.last_words(log)
    assert said.endswith("ends with: torch.AcceleratorError: CUDA error: an illegal memory access was encountered")


def test_a_row_whose_result_can_not_be_read_has_failed_and_the_next_one_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(limit_s: float) -> Numbers:
        return {"n": {}["phaseMilliseconds"]}

    rows = [Row("unreadable", read), Row("next", lambda limit_s: {"n": 1})]
    part = Part("works", ("number",), lambda setting: rows, lambda numbers: (str(numbers["n"]),))
    statuses = programme.run(part, Setting(tmp_path / "works", None), 60.0)
    assert statuses == {"unreadable": programme.FAILED, "next": programme.GOOD}
    told = capsys.readouterr()
    assert "KeyError: 'phaseMilliseconds'" in told.out
    assert 'return {"n": {}["phaseMilliseconds"]}' in told.err


@pytest.mark.parametrize("fails", [False, True])
def test_what_rows_are_compared_with_is_trained_once_even_if_that_fails(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Path] = []

    def train(work: Callable[[], Any], log: Path, limit_s: float) -> Any:
        trained.append(log)
        if fails:
            raise child.WorkFailed("it was stopped after 180 s")
        return {"losses": [2.0]}

    monkeypatch.setattr(child, "run", train)
    references = works.References(Setting(tmp_path, None))
    for _ in range(2):
        if fails:
            with pytest.raises(child.WorkFailed, match="it was stopped after 180 s"):
                references.losses("fp8", False, 180.0)
        else:
            assert references.losses("fp8", False, 180.0) == [2.0]
    assert [log.name for log in trained] == ["CPU-fp8.log"]


@pytest.mark.parametrize("part", [works.PART, parity.PART, speed.PART], ids=lambda part: part.name)
def test_rows_in_8_bits_are_not_here_on_a_device_that_has_none(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(work: Callable[[], Any], log: Path, limit_s: float) -> Any:
        raise AssertionError("it was trained")

    monkeypatch.setattr(child, "run", train)
    monkeypatch.setattr(speed.compiling, "lacks", lambda device: "")
    setting = Setting(tmp_path, {"name": "an A100", "capability": "8.0"})
    rows = [row for row in part.rows(setting) if "fp8" in row.name]
    assert rows
    for row in rows:
        with pytest.raises(NotHere, match=r"fp8 needs compute capability 8\.9, and this device has 8\.0"):
            row.work(60.0)


def test_a_pytest_that_does_not_know_our_settings_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(works.metadata, "version", lambda name: "8.4.2")
    with pytest.raises(NotHere, match=r"our settings need pytest 9, and this Python has 8\.4\.2"):
        works.marked_tests(Setting(tmp_path, {"name": "some GPU"}), 1.0)


def test_a_device_that_can_not_be_used_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failed(work: Callable[[], Any], log: Path, limit_s: float) -> Any:
        raise child.WorkFailed("exit code 1; facts.log ends with: RuntimeError: the NVIDIA driver is too old")

    monkeypatch.setattr(programme.child, "run", failed)
    monkeypatch.setattr(programme, "PRELOADED", ())
    monkeypatch.setattr(programme.gc, "freeze", lambda: None)
    assert programme.main(["works", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert "this machine's device can't be used: exit code 1; " in said.err
    assert "the NVIDIA driver is too old" in said.err
    assert said.out == ""
