"""What is accepted of the records that pods send, which may be anything."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.trainer_tools import received_records
from trainmaster_operator.cli.trainer_tools.received_records import Allowance, Received, Strange

FIRST, SECOND = "rank-00004.xplane.pb", "rank-00005.17.pt.trace.json.gz"


def received(tmp_path: Path, **fields: Any) -> Received:
    """The answer of a pod with ranks 4 and 5, below a folder in which nothing else may appear."""
    (tmp_path / "part").mkdir(exist_ok=True)
    return Received("tiny-worker-2-1", range(4, 6), tmp_path / "part", **{"allowance": Allowance(), **fields})


def sent(*files: list[Any], waiting: Any = False, marks: Any = None) -> bytes:
    return json.dumps({"waiting": waiting, "marks": marks or {}, "files": files}).encode() + b"\n"


def outside(tmp_path: Path) -> list[str]:
    return sorted(os.listdir(tmp_path)) + sorted(os.listdir(tmp_path / "part"))


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_files_arrive_as_they_were_in_pieces_of_any_size(tmp_path: Path, piece: int) -> None:
    marks = {"4": {"state": "done", "round": 1, "words": "steps 3 to 4"}, "9": {"state": "failed", "words": ""}}
    answer = sent([FIRST, 5], ["rank-00004.xplane.trace.json.gz", 0], [SECOND, 3000], marks=marks)
    answer += b"hello" + b"\n\0x" * 1000
    found = received(tmp_path)
    for start in range(0, len(answer), piece):
        found.feed(answer[start : start + piece])
    found.end()
    assert (found.waiting, found.states) == (False, {4: ("done", "steps 3 to 4")})
    assert (tmp_path / "part" / FIRST).read_bytes() == b"hello"
    assert (tmp_path / "part" / SECOND).read_bytes() == b"\n\0x" * 1000
    assert (tmp_path / "part" / "rank-00004.xplane.trace.json.gz").read_bytes() == b""


@pytest.mark.parametrize(
    "name",
    [
        "../rank-00004.xplane.pb",
        "/tmp/rank-00004.xplane.pb",
        "rank-00004./../../x.xplane.pb",
        "rank-00004...xplane.pb",
        "rank-00004.x\n.xplane.pb",
        "rank-00004.x\0.xplane.pb",
        "rank-00004.xplane.pb\n",
        "rank-٠٠٠٠٤.xplane.pb",
        "rank-00003.xplane.pb",  # of another pod
        "rank-00004.sh",
        "rank-00004." + "x" * 300 + ".xplane.pb",
        ".xplane.pb",
        "",
        None,
        4,
        ["rank-00004.xplane.pb"],
    ],
)
def test_a_name_that_no_record_has_is_refused_and_nothing_is_written(tmp_path: Path, name: Any) -> None:
    found = received(tmp_path)
    with pytest.raises(Strange, match=r"tiny-worker-2-1: sent a file .*, which is no record of its ranks"):
        found.feed(sent([FIRST, 1], [name, 1]) + b"xy")
    found.close()
    assert outside(tmp_path) == ["part"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"x" * 70_000, "a first line without an end"),
        (b"x" * 70_000 + b"\n", "a first line without an end"),
        (b"[1]\n", "a first line that cannot be read"),
        (b"{}\n", "a first line that cannot be read"),
        (b"\xff\n", "a first line that cannot be read"),
        (b"[" * 60_000 + b"\n", "a first line that cannot be read"),
        (sent([FIRST]), "a first line that cannot be read"),
        (sent([FIRST, 1], [FIRST, 1]), "too many files"),
        (sent(*([f"rank-00004.{n}.xplane.pb", 0] for n in range(101))), "too many files"),
        (sent([FIRST, -1]), "a file without a size"),
        (sent([FIRST, 1.0]), "a file without a size"),
        (sent([FIRST, True]), "a file without a size"),
        (sent(marks=[1]), "a first line that cannot be read"),
        (sent([FIRST, 1]) + b"xy", "more than the files that it has announced"),
        (sent() + b"x", "more than the files that it has announced"),
    ],
)
def test_what_no_agent_sends_is_refused_in_a_sentence(tmp_path: Path, answer: bytes, says: str) -> None:
    found = received(tmp_path)
    with pytest.raises(Strange, match=f"tiny-worker-2-1: sent {says}"):
        found.feed(answer)
    found.close()


@pytest.mark.parametrize("answer", [b"", b'{"waiting"', sent([FIRST, 5]) + b"hell", sent([FIRST, 5])])
def test_an_answer_that_breaks_off_is_refused(tmp_path: Path, answer: bytes) -> None:
    found = received(tmp_path)
    found.feed(answer)
    with pytest.raises(Strange, match="only a part of its records"):
        found.end()


def test_all_pods_of_a_job_share_one_limit_that_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    allowance = Allowance()
    received(tmp_path, allowance=allowance).feed(sent([FIRST, received_records.MOST_BYTES - 10]))
    (tmp_path / "part" / FIRST).unlink()
    with pytest.raises(Refusal, match="the job's records have more than 4 GiB; ask for fewer steps"):
        received(tmp_path, allowance=allowance).feed(sent([FIRST, 11]))
    assert outside(tmp_path) == ["part"]


def test_words_of_a_pod_cannot_steer_a_terminal(tmp_path: Path) -> None:
    found = received(tmp_path)
    found.feed(sent(marks={"4": {"state": "failed", "words": "\x1b]0;title\x07 ok\r\n" + "y" * 1000}}))
    assert found.states[4][1].startswith("]0;title  ok")
    assert len(found.states[4][1]) <= 300
    assert found.states[4][1].isprintable()


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    found = received(tmp_path)
    (tmp_path / "part" / FIRST).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refusal, match="cannot be written: file exists"):
        found.feed(sent([FIRST, 1]) + b"x")
    assert outside(tmp_path) == ["part", FIRST]
