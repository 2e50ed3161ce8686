"""What a message says of the stack of a rank."""

from __future__ import annotations

from trainmaster_operator.planning.facts.stack_frames import innermost, is_in_own_code, place

STACK = '  File "/job/train.py", line 40, in <module>\n  File "/job/train.py", line 12, in exchange\n'


def test_the_source_line_of_a_call_is_behind_its_place() -> None:
    assert innermost(STACK) == "exchange (train.py:12) < <module> (train.py:40)"
    with_source = f"{STACK}    time.sleep(10**6)\n"
    assert innermost(with_source) == "exchange (train.py:12: time.sleep(10**6)) < <module> (train.py:40)"
    assert place(with_source) == ("/job/train.py", "12")
    assert is_in_own_code(with_source)
