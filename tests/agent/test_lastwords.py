"""Last words that a pod leaves behind: people read them, and so does an operator that was away."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.contract.wire import Cause, Verdict, termination_message


def test_what_was_written_is_understood(tmp_path) -> None:
    said = Verdict(3, Cause.CRASH, 7, "KeyError: 'x'", signal="SIGSEGV", traceback="Traceback\n  line", step=12)
    termination_message.write(str(tmp_path / "log"), said)
    text = (tmp_path / "log").read_text()
    assert text.startswith("rank 3: Crash: KeyError: 'x' (round 7, step 12, SIGSEGV)\nTraceback")
    assert termination_message.parse(text) == said


def test_last_lines_stand_in_for_a_traceback_and_a_cascade_stays_one() -> None:
    said = Verdict(0, Cause.CRASH, 1, "a peer is gone", last_lines=["one", "two"], cascade=True)
    found = termination_message.parse(termination_message.render(said).decode())
    assert found is not None
    assert (found.cascade, found.traceback) == (True, "one\ntwo")


@given(
    message=st.text(max_size=6000),
    traceback=st.text(max_size=6000),
    step=st.integers(0, 2**53),
    cause=st.sampled_from(Cause),
)
def test_any_verdict_fits_and_keeps_its_rank_and_cause(message: str, traceback: str, step: int, cause: Cause) -> None:
    raw = termination_message.render(Verdict(5, cause, 2, message, traceback=traceback, step=step))
    assert len(raw) <= termination_message.LIMIT
    found = termination_message.parse(raw.decode(errors="replace"))
    assert found is not None
    assert (found.rank, found.cause) == (5, cause)


def test_words_that_name_a_file_whose_name_is_no_text_are_written_all_the_same(tmp_path) -> None:
    name = b"shard-\xff".decode(errors="surrogateescape")
    said = Verdict(0, Cause.CRASH, 1, f"FileNotFoundError: {name}", traceback=f"open({name})", step=4)
    termination_message.write(str(tmp_path / "log"), said)
    written = (tmp_path / "log").read_text()
    assert written == "rank 0: Crash: FileNotFoundError: shard-? (round 1, step 4)\nopen(shard-?)"


@given(st.text(max_size=300))
def test_other_texts_are_no_verdicts(text: str) -> None:
    assert termination_message.parse(text) is None
    assert termination_message.parse(f"rank 1: Nonsense: {text} (round 1, step 1)\n") is None
