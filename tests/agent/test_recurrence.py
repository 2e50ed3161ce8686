"""Which last words are of the program itself, so that it would fail in the same way again."""

from __future__ import annotations

import signal

import pytest

from trainmaster.agent.shell.ranks.verdict import End, judge
from trainmaster.contract.wire import Recurrence

TRACEBACK = "Traceback (most recent call last):"
USAGE = [
    "usage: train.py [-h] --data DATA [--backend {gloo,nccl}]",
    "train.py: error: the following arguments are required: --data",
    "[W1125 socket.cpp:767] a library's word at its end",
]


def raised(*exceptions: str) -> End:
    """A rank that ended by the last of these, which followed from the others."""
    blocks = [f'{TRACEBACK}\n  File "train.py", line 3, in <module>\n    f()\n{line}' for line in exceptions]
    text = "\n\nDuring handling of the above exception, another exception occurred:\n\n".join(blocks)
    return End(2, 1, words={"cause": "Crash", "message": exceptions[-1], "traceback": text})


def exited(code: int, *lines: str, exits: bool = True) -> End:
    return End(2, 1, status=code << 8, lines=list(lines), exits=exits)


def test_a_usage_error_is_told_in_the_words_of_the_program() -> None:
    verdict = judge(exited(2, *USAGE))
    assert verdict.message == "ended with exit code 2: train.py: error: the following arguments are required: --data"
    assert (verdict.exit_code, verdict.recurs) == (2, Recurrence.CERTAIN)


def test_a_program_that_exits_with_a_sentence_is_told_by_it() -> None:
    verdict = judge(exited(1, "step 3", "the vocabulary has 7 words, but the model 8", ""))
    words = "ended with exit code 1; its last output: the vocabulary has 7 words, but the model 8"
    assert (verdict.message, verdict.recurs) == (words, Recurrence.LIKELY)


@pytest.mark.parametrize(
    "line",
    [
        "ModuleNotFoundError: No module named 'torch.distributed.nonesuch'",
        "SyntaxError: invalid syntax (train.py, line 3)",
        "IndentationError: unexpected indent (train.py, line 3)",
    ],
)
def test_a_program_that_cannot_be_loaded_fails_for_certain(line: str) -> None:
    assert judge(raised(line)).recurs is Recurrence.CERTAIN
    assert judge(raised("ImportError: cannot import name 'a' from 'b'", line)).recurs is Recurrence.CERTAIN


@pytest.mark.parametrize("line", ["NameError: name 'modle' is not defined", "KeyError: 'lr'", "mine.BadShape: 3 != 4"])
def test_an_exception_of_the_program_is_likely_to_recur(line: str) -> None:
    assert judge(raised(line)).recurs is Recurrence.LIKELY


@pytest.mark.parametrize(
    "end",
    [
        raised("FileNotFoundError: [Errno 2] No such file or directory: '/mnt/data'"),
        raised("OSError: [Errno 116] Stale file handle: '/mnt/data'"),
        raised("socket.gaierror: [Errno -3] Temporary failure in name resolution"),
        raised("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub', port=443): Max retries exceeded"),
        raised("torch.distributed.DistNetworkError: The client socket has failed to connect"),
        raised("OSError: [Errno 5] Input/output error", "RuntimeError: the data can't be read"),
        raised("OSError: [Errno 5] Input/output error", "ModuleNotFoundError: No module named 'data'"),
        raised("RuntimeError: No CUDA GPUs are available"),
        raised("MemoryError: "),
        raised("ImportError: libibverbs.so.1: cannot open shared object file: No such file or directory"),
        exited(
            2, "train.py: error: argument --data: can't open '/mnt/x': [Errno 2] No such file or directory: '/mnt/x'"
        ),
        exited(3),
        exited(3, "connecting to the hub", "timed out"),
        exited(130, TRACEBACK, "KeyboardInterrupt"),
        End(2, 1, status=signal.SIGKILL, lines=["step 1"]),
        End(2, 1, status=signal.SIGSEGV, lines=["step 1"]),
        End(2, 1, status=None, note="its zygote ended, and all ranks with it"),
    ],
)
def test_where_something_outside_of_the_program_may_be_to_blame_nothing_is_known(end: End) -> None:
    assert judge(end).recurs is Recurrence.UNKNOWN


def test_exit_code_2_of_a_program_that_was_executed_as_it_is_is_only_likely_to_recur() -> None:
    assert judge(exited(2, "bash: line 1: unexpected end", exits=False)).recurs is Recurrence.LIKELY


def test_a_usage_error_behind_a_shell_is_likely_to_recur_whatever_a_library_says_at_its_end() -> None:
    assert judge(exited(2, *USAGE, exits=False)).recurs is Recurrence.LIKELY
    unreachable = "train.py: error: the hub can't be reached: Connection refused"
    assert judge(exited(2, USAGE[0], unreachable, exits=False)).recurs is Recurrence.UNKNOWN


def test_what_failed_in_a_fork_with_imported_modules_may_be_the_forks_fault() -> None:
    end = raised("ModuleNotFoundError: No module named 'nonesuch'")
    end.forked_warm = True
    assert judge(end).recurs is Recurrence.LIKELY
