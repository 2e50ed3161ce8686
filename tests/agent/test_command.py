from __future__ import annotations

import sys

import pytest

from trainmaster.agent.command import Command, parse

SCRIPT = {"kind": "script", "path": "train.py", "args": ["--x", "1"]}


@pytest.mark.parametrize(
    "argv",
    [
        ["python", "train.py", "--x", "1"],
        ["python3", "-u", "train.py", "--x", "1"],
        [sys.executable, "train.py", "--x", "1"],
        ["torchrun", "--nproc-per-node=2", "train.py", "--x", "1"],
        ["torchrun", "--standalone", "--nproc_per_node", "2", "--max-restarts", "3", "train.py", "--x", "1"],
        ["python", "-m", "torch.distributed.run", "--nnodes", "1", "train.py", "--x", "1"],
        ["accelerate", "launch", "--multi_gpu", "--num_processes", "2", "train.py", "--x", "1"],
    ],
)
def test_a_script_is_found_behind_its_launcher(argv: list[str]) -> None:
    assert parse(argv).entry == SCRIPT


def test_a_module_is_run_as_a_module() -> None:
    module = {"kind": "module", "name": "pkg.train", "args": ["-v"]}
    assert parse(["python", "-m", "pkg.train", "-v"]).entry == module
    assert parse(["torchrun", "--standalone", "-m", "pkg.train", "-v"]).entry == module


def test_code_on_the_command_line_is_run_as_such() -> None:
    code = {"kind": "code", "code": "print()", "args": ["-v"]}
    command = parse(["python3", "-X", "dev", "-c", "print()", "-v"])
    assert (command.entry, command.flags) == (code, ["-X", "dev"])


@pytest.mark.parametrize(
    "argv",
    [["bash", "run.sh"], ["/opt/other/bin/python", "train.py"], ["/opt/bin/python", "-c", "print()"], ["./train"]],
)
def test_anything_else_is_executed_as_it_is(argv: list[str]) -> None:
    assert parse(argv) == Command(argv)


def test_interpreter_flags_are_kept() -> None:
    assert parse(["python", "-O", "-X", "dev", "train.py"]).flags == ["-O", "-X", "dev"]


def test_a_launcher_without_a_script_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="no script follows"):
        parse(["torchrun", "--standalone"])
    with pytest.raises(ValueError, match="command is empty"):
        parse([])
