"""What ranks print, on the terminal of a run on this machine and by `trainmaster logs DIR`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.runs import CRASH, SUCCEEDED, output_folder, status
from trainmaster_operator.cli import output_folder as output
from trainmaster_operator.cli.display.last_lines import last_words
from trainmaster_operator.cli.display.live_display import summary
from trainmaster_operator.cli.display.piece_of_news import News
from trainmaster_operator.cli.display.rank_output import CHUNK, RankOutput, shown
from trainmaster_operator.cli.display.scenes import Scene
from trainmaster_operator.cli.logs.run_logs import of_run
from trainmaster_operator.cli.main import main
from trainmaster_operator.cli.run.rank_0_output import HOLD_S, Teller, is_read
from trainmaster_operator.planning.facts.job_state import JobPhase


def say(logs: Path, pod: str, *lines: str, end: str = "\n") -> None:
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / f"tiny-worker-{pod}.log").open("a") as file:
        file.write("\n".join(lines) + end)


def read_all(rank: RankOutput, slots: str = "") -> list[str]:
    found: list[bytes] = []
    while (lines := rank.read(status(roundMap=slots))) is not None:
        found += lines
    return [line.decode() for line in found]


def test_a_ranks_lines_come_once_each_and_only_when_they_are_whole(tmp_path: Path) -> None:
    rank = RankOutput(tmp_path, 0, ranks_per_pod=2)
    assert read_all(rank) == []
    say(tmp_path, "0-0", "[agent] hello", "[rank 0] one", "[rank 1] other", "[rank 0] tw", end="")
    say(tmp_path, "1-0", "[rank 2] elsewhere")
    assert read_all(rank) == ["one"]
    say(tmp_path, "0-0", "o")
    assert read_all(rank) == ["two"]
    assert read_all(rank) == []


def test_a_rank_is_followed_into_the_pod_that_replaces_its_own_and_into_another_slot(tmp_path: Path) -> None:
    rank = RankOutput(tmp_path, 0, ranks_per_pod=1)
    say(tmp_path, "0-0", "[rank 0] one")
    assert read_all(rank, "0-3") == ["one"]
    say(tmp_path, "0-1", "[rank 0] two")
    say(tmp_path, "2-0", "[rank 0] three")
    assert read_all(rank, "0-3") == ["two"]
    assert read_all(rank, "2-3") == ["three"]


def test_what_an_earlier_run_left_is_not_shown_again(tmp_path: Path) -> None:
    say(tmp_path, "0-0", "[rank 0] old")
    rank = RankOutput(tmp_path, 0, ranks_per_pod=1)
    say(tmp_path, "0-0", "[rank 0] new")
    assert read_all(rank) == ["new"]


def test_a_line_that_is_longer_than_a_chunk_stays_one_line(tmp_path: Path) -> None:
    rank = RankOutput(tmp_path, 0, ranks_per_pod=1)
    say(tmp_path, "0-0", "[rank 0] " + "x" * 2 * CHUNK, "[rank 0] y")
    assert [len(line) for line in read_all(rank)] == [2 * CHUNK, 1]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"plain  words", "plain  words"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b[2J\x1b[Hgone \x1b]0;title\x07there", "gone there"),
        (b" 10%|#         |\r100%|##########|\r", "100%|##########|"),
        (b"\tindented", "        indented"),
        (b"bell\x07 and \xff", "bell and \ufffd"),
    ],
)
def test_what_a_rank_prints_moves_no_cursor(line: bytes, text: str) -> None:
    assert shown(line) == text


@pytest.mark.parametrize(
    ("line", "loud", "quiet", "of_a_script"),
    [
        ("evaluation: step 4, loss 1.2", "evaluation", "evaluation", "rank 0"),
        ("step 40 of 100: loss 2.5, 100 tokens/s", None, None, "rank 0"),
        ("hello", "rank 0", None, "rank 0"),
    ],
)
def test_of_our_loop_evaluations_are_shown_and_steps_are_left_to_the_display(
    line: str, loud: str | None, quiet: str | None, of_a_script: str
) -> None:
    def word(*, own_loop: bool, quiet: bool) -> str | None:
        told = Teller(0, own_loop=own_loop, quiet=quiet).pick_news(line.encode())
        return told[0].word if told else None

    assert word(own_loop=True, quiet=False) == loud
    assert word(own_loop=True, quiet=True) == quiet
    assert word(own_loop=False, quiet=False) == of_a_script
    assert word(own_loop=False, quiet=True) is None


LOST = "RuntimeError: [pair.cc:545] Read error [127.0.0.1]:45216: Connection reset by peer"
TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 29', "", "    loss.backward()"]
TORCH = [
    "[rank0]:[W1126 16:29:12.102458823 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=5): Broken pipe",
    "Exception raised from sendBytes at Utils.hpp:757 (most recent call first):",
    "frame #0: c10::Error::Error(c10::SourceLocation) + 0x9d (0x7fcae815c13d in libc10.so)",
    "<omitting python frames>",
    "frame #19: <unknown function> + 0x891f5 (0x7fcae9ea71f5 in libc.so.6)",
    "",
]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def told(teller: Teller, *lines: str) -> list[str]:
    return [piece.text for line in lines for piece in teller.pick_news(line.encode())]


def texts(pieces: list[News]) -> list[str]:
    return [piece.text for piece in pieces]


def test_the_traceback_of_a_rank_of_our_loop_is_left_to_the_news_of_the_failure() -> None:
    teller = Teller(0, own_loop=True, quiet=False)
    assert told(teller, "one", *TRACEBACK, LOST, "two") == ["one", "two"]


@pytest.mark.parametrize("own_loop", [True, False])
def test_frames_that_torch_prints_when_a_peer_is_lost_are_not_shown(own_loop: bool) -> None:
    teller = Teller(0, own_loop=own_loop, quiet=False)
    assert told(teller, "one", *TORCH, *TORCH, "two") == ["one", "two"]


def test_what_torch_logs_about_anything_else_is_shown() -> None:
    lines = ["[W1126 16:29:12.1 Module.cpp:182] symbolizing C++ stack trace", "frame #0: main"]
    assert told(Teller(0, own_loop=False, quiet=False), *lines) == lines


def test_our_loop_does_not_show_that_the_store_of_a_lost_round_is_silent() -> None:
    assert (
        told(Teller(0, own_loop=True, quiet=False), "trainmaster: the round's store doesn't answer: Broken pipe") == []
    )


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_a_rank_that_lost_its_peer_is_told_after_the_failure_and_without_its_traceback(prefix: str) -> None:
    teller = Teller(0, own_loop=False, quiet=False, clock=Clock())
    assert told(teller, "one", *(prefix + line for line in [*TRACEBACK, LOST]), "resumed") == ["one"]
    explained = "rank 2 failed first; the error of rank 0 most likely follows from it"
    assert texts(teller.after_failure(CRASH)) == [explained, "resumed"]
    assert told(teller, "two") == ["two"]
    assert teller.after_failure(CRASH) == []


def test_a_rank_that_lost_a_pod_is_told_without_its_traceback() -> None:
    teller = Teller(0, own_loop=False, quiet=False, clock=Clock())
    assert told(teller, *TRACEBACK, LOST) == []
    lost = CRASH.model_copy(update={"rank": None, "cause": "AgentLost"})
    explained = "tiny-worker-2-0 failed first; the error of rank 0 most likely follows from it"
    assert texts(teller.after_failure(lost)) == [explained]


def test_a_traceback_that_names_no_lost_connection_is_shown_after_the_failure_of_another_rank() -> None:
    teller = Teller(0, own_loop=False, quiet=False, clock=Clock())
    lines = [*TRACEBACK, "KeyError: 'lr'"]
    assert told(teller, *lines) == []
    assert texts(teller.after_failure(CRASH))[1:] == lines


def test_the_traceback_of_the_rank_that_failed_first_is_shown_whole() -> None:
    teller = Teller(0, own_loop=False, quiet=False, clock=Clock())
    lines = [*TRACEBACK, LOST]
    assert told(teller, *lines) == []
    assert texts(teller.after_failure(CRASH.model_copy(update={"rank": 0}))) == lines


def test_a_traceback_that_no_failure_follows_is_shown_after_a_moment_and_explained_by_a_later_one() -> None:
    clock = Clock()
    teller = Teller(0, own_loop=False, quiet=False, clock=clock)
    lines = [*TRACEBACK, LOST]
    assert told(teller, *lines) == []
    clock.now += HOLD_S
    assert texts(teller.overdue()) == lines
    assert texts(teller.after_failure(CRASH)) == [
        "rank 2 failed first; the error of rank 0 most likely follows from it"
    ]
    assert teller.after_failure(CRASH) == []


def test_a_traceback_that_is_read_after_the_failure_of_another_rank_is_explained_by_it() -> None:
    clock = Clock()
    teller = Teller(0, own_loop=False, quiet=False, clock=clock)
    teller.after_failure(CRASH)
    assert told(teller, *TRACEBACK, LOST) == []
    clock.now += HOLD_S
    assert texts(teller.overdue()) == ["rank 2 failed first; the error of rank 0 most likely follows from it"]


def test_what_is_held_back_when_the_run_ends_is_shown() -> None:
    teller = Teller(0, own_loop=False, quiet=False, clock=Clock())
    assert told(teller, *TRACEBACK, "KeyError: 'lr'") == []
    assert texts(teller.rest()) == [*TRACEBACK, "KeyError: 'lr'"]


def test_nothing_is_written_into_a_pipe_that_nobody_reads() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as reader, open(writing, "w") as stream:
        assert is_read(stream)
        os.write(writing, b"x" * 20000)
        assert not is_read(stream)
        assert os.read(reader.fileno(), 20000)
        assert is_read(stream)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Of a run whose rank 2 failed."""
    failure = CRASH.model_copy(update={"pod": "tiny-worker-2-0"})
    folder = output_folder(tmp_path / "run", status(JobPhase.FAILED, lastFailure=failure))
    say(folder / "logs", "2-0", "[rank 3] other", *(f"[rank 2] line {n}" for n in range(30)), "[agent] rank 2 ended")
    say(folder / "logs", "0-0", "[rank 0] first", "[agent] begins")
    return folder


def test_a_failed_run_ends_with_the_last_lines_of_the_rank_that_failed_first_and_its_log(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = status(JobPhase.FAILED, lastFailure=CRASH)
    scene = Scene("tiny", 4, str(out), 100, failed, words=last_words(out, failed))
    summary(scene, Console(width=60), str(out / "report.html"))
    text = capsys.readouterr().out
    assert "The last lines of rank 2, which failed first:\n  line 18\n" in text
    assert "  line 29\n" in text
    assert "other" not in text
    assert text.endswith(f"Log of rank 2: {out}/logs/tiny-worker-2-0.log\n")


def test_a_traceback_that_the_log_has_is_shown_once(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say(out / "logs", "2-0", "[rank 2] Traceback", "[rank 2] ValueError: 42")
    failed = status(JobPhase.FAILED, lastFailure=CRASH.model_copy(update={"traceback": "Traceback\nValueError: 42\n"}))
    summary(Scene("tiny", 4, str(out), 100, failed, words=last_words(out, failed)), Console(width=60))
    assert capsys.readouterr().out.count("ValueError: 42") == 1


@pytest.mark.parametrize(
    ("before", "block", "times"),
    [(["begins"], ["Traceback", "  at a", "ValueError"], 2), ([], ["a", "b", "b"], 3), (["x"], ["the same"], 5)],
)
def test_lines_that_a_rank_has_printed_in_each_round_are_shown_once(
    out: Path, before: list[str], block: list[str], times: int
) -> None:
    say(out / "logs", "2-0", *(f"[rank 2] {line}" for line in [*before, *block * times]), "[agent] rank 2 ended")
    words = last_words(out, status(JobPhase.FAILED, lastFailure=CRASH))
    assert words is not None
    shown = ("line 29", *before, *block)
    assert words.lines[-len(shown) :] == shown


def test_a_run_that_succeeded_ends_with_the_folder_of_its_logs(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene("tiny", 4, str(out), 100, SUCCEEDED, words=last_words(out, SUCCEEDED))
    summary(scene, Console(width=60))
    assert f"Logs: {out}/logs\n" in capsys.readouterr().out
    assert last_words(tmp_path / "nothing", SUCCEEDED) is None


def test_logs_of_a_folder_are_those_of_a_rank_of_a_run_on_this_machine(
    out: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["logs", str(out)]) == 0
    assert capfdbinary.readouterr().out == b"[rank 0] first\n"
    assert main(["logs", str(out), "--rank", "3"]) == 0
    assert capfdbinary.readouterr().out == b"[rank 3] other\n"


def test_logs_of_all_ranks_come_pod_after_pod_the_one_that_printed_last_at_the_end(
    out: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    os.utime(out / "logs" / "tiny-worker-2-0.log", (2e9, 2e9))
    assert main(["logs", str(out), "--all"]) == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert lines[:4] == ["[rank 0] first", "[worker-0] [agent] begins", "[rank 3] other", "[rank 2] line 0"]


def test_logs_are_followed_until_the_run_ends(
    out: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    held: Iterator[bool] = iter([True, True, False])
    monkeypatch.setattr(output, "is_held", lambda path: next(held))
    more = iter([["[rank 0] second"], ["[rank 1] third", "[rank 0] fourth"]])
    assert of_run(out, 0, follow=True, sleep=lambda _: say(out / "logs", "0-0", *next(more))) == 0
    assert capfdbinary.readouterr().out == b"[rank 0] first\n[rank 0] second\n[rank 0] fourth\n"
    assert next(more, None) is None


def test_logs_of_a_rank_that_the_job_does_not_have_are_refused(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", str(out), "--rank", "4"]) == 2
    assert "--rank 4: tiny has ranks 0 to 3" in capsys.readouterr().err


def test_logs_of_a_run_that_has_printed_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = output_folder(tmp_path / "quiet")
    assert main(["logs", str(out)]) == 2
    assert "its ranks have printed nothing: none of its pods has started; --follow" in capsys.readouterr().err
    (tmp_path / "none").mkdir()
    assert main(["logs", str(tmp_path / "none")]) == 2
    assert "none: holds no run" in capsys.readouterr().err
