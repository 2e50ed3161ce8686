"""`python -m simulation`, as docs/simulation.md tells to use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.__main__ import main
from simulation.schedule_runs.schedule import Schedule


def test_the_log_of_a_schedule_that_goes_well_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["seeds", "720"]) == 0
    (summary,) = capsys.readouterr().out.splitlines()
    assert summary.startswith("1 schedules, 0 bad, ")
    assert main(["seeds", "720", "--log"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "--- seed 720"
    assert len(lines) > 20


def test_what_minimise_writes_to_standard_output_is_what_replay_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["minimise", "720"]) == 0
    out, err = capsys.readouterr()
    assert Schedule.from_json(out) == Schedule.of_seed(720)
    assert "breaks no promise, so its schedule is written as it is\n" in err
    assert "1 schedules, 0 bad, " in err
    file = tmp_path / "smaller.json"
    file.write_text(out)
    assert main(["replay", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"--- {file}\n")


def test_a_file_that_cannot_be_replayed_is_refused_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.json"
    assert main(["replay", str(missing)]) == 2
    sentence = f"{missing}: can't be read: no such file or directory; a file that soak or minimise wrote is expected\n"
    assert capsys.readouterr().err == sentence
    (tmp_path / "other.json").write_text("{}")
    assert main(["replay", str(tmp_path / "other.json")]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path}/other.json: this is not a schedule: ")


def test_seeds_that_are_no_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["seeds", "all"])
    assert end.value.code == 2
    assert "argument A:B: invalid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["seeds", "9:3"], "argument A:B: invalid seeds 9:3: no schedule lies between them; B must be above A"),
        (["soak", "--log"], "unrecognized arguments: --log"),
        (["bugs", "--log"], "unrecognized arguments: --log"),
        (["exhaustive", "--stride", "0"], "argument --stride: invalid number 0: at least 1 is expected"),
        (["soak", "--processes", "0"], "argument --processes: invalid number 0: at least 1 is expected"),
    ],
)
def test_a_command_that_would_run_nothing_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert words in capsys.readouterr().err
