"""The help: every command is described, its examples can be given, and the table of faults is the trainer's."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import WriteJob
from tests.cli.runs import output_folder
from tests.docs import spoken
from trainmaster.rank import injected_faults
from trainmaster_operator.cli import argument_parser, command_table
from trainmaster_operator.cli.fault_injection import fault_kinds
from trainmaster_operator.cli.main import main

ROOT = Path(__file__).parents[2]
LINES = {name: line for group in command_table.GROUPS.values() for name, line in group.items()}


def command_of(name: str) -> argument_parser.Parser:
    """The parser of a command."""
    (added,) = (action for action in argument_parser.parser([name])._actions if isinstance(action.choices, dict))
    command = added.choices[name]
    assert isinstance(command, argument_parser.Parser)
    return command


@pytest.fixture(autouse=True)
def _a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    out, err = capsys.readouterr()
    assert (ended.value.code, err) == (0, "")
    return out


def test_the_help_lists_all_commands_below_four_headings(capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(capsys)
    places = [shown.index(f"\n{title}:\n") for title in ("This machine", "A cluster", "Models and data", "Developers")]
    assert places == sorted(places)
    for name, line in LINES.items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", shown, re.MULTILINE)


def test_without_any_word_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out == help_of(capsys)


@pytest.mark.parametrize("name", LINES)
def test_each_command_says_what_it_does_and_has_two_examples_that_can_be_given(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = help_of(capsys, name)
    assert max(len(line) for line in shown.splitlines()) <= 80
    description = shown.split("\n\n")[1]
    assert re.match(r"[A-Z][a-z]+s ", description), "it begins with what the command does"
    examples = re.findall(r"^  (\S*\s?.*trainmaster .*)$", shown.partition("\nexamples:\n")[2], re.MULTILINE)
    assert len(examples) >= 2
    for example in examples:
        line = re.sub(r"^source <\((.*)\)$", r"\1", example)
        assert line.startswith(f"trainmaster {name}")
        assert list(spoken.problems(shlex.split(line))) == []


@pytest.mark.parametrize(
    "line",
    [
        line
        for name in ("init", "validate", "status", "logs", "report", "migrate", "completion")
        for line, _ in command_of(name).examples
        if " -n " not in line
    ],
)
def test_an_example_that_needs_no_cluster_and_trains_nothing_works(
    line: str, tmp_path: Path, write_job: WriteJob, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    job = write_job()
    if " init " in line:
        job.unlink()
        Path("train.py").touch()
    else:
        Path("old.yaml").write_text(job.read_text())
        logs = output_folder(Path("runs/my-gpt"), name="my-gpt") / "logs"
        logs.mkdir()
        (logs / "my-gpt-worker-3-0.log").write_text("[rank 3] hello\n")
    words = re.sub(r"^source <\((.*)\)$|^(.*) > \S+$", r"\1\2", line).split()
    assert main(words[1:]) == 0
    assert capfdbinary.readouterr().out != b""


@pytest.mark.parametrize("name", LINES)
def test_each_argument_of_a_command_has_a_help(name: str) -> None:
    assert [action.dest for action in command_of(name)._actions if not action.help] == []


@pytest.mark.parametrize(("words", "left_out"), [(["run"], set[str]()), (["fault"], set(fault_kinds.NOT_ON_A_CLUSTER))])
def test_the_kinds_of_faults_are_listed_with_their_keys(
    words: list[str], left_out: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    table = help_of(capsys, *words).partition("\nkinds of faults:\n")[2].partition("\n\n")[0]
    told: dict[str, str] = {}
    for line in table.splitlines()[3:]:
        found = re.match(r"  ([a-z][a-z-]+)  ", line)
        kind = found[1] if found else next(reversed(told))
        told[kind] = told.get(kind, "") + line + "\n"
    assert set(told) == set(injected_faults.KINDS) - left_out
    for kind, lines in told.items():
        assert set(re.findall(r"^ +(\w+)(?:=\w+ or \w+=\w+)? \(default", lines, re.MULTILINE)) == set(
            injected_faults.KINDS[kind].keys
        )


def test_a_command_imports_nothing_that_only_another_one_needs() -> None:
    probe = (
        "import sys\n"
        "from trainmaster_operator.cli.argument_parser import parser\n"
        "parser(['run', 'job.yaml']).parse_args(['run', 'job.yaml'])\n"
        "print(*(name for name in sys.modules if '.cli.' in name or name in ('yaml', 'pydantic', 'rich', 'aiohttp')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], env=dict(os.environ), capture_output=True, text=True, check=True
    )
    package = "trainmaster_operator.cli"
    names = (
        "argument_parser",
        "refusal",
        "command_table",
        "common_options",
        "run",
        "run.run_command",
        "fault_injection",
    )
    assert sorted(done.stdout.split()) == sorted(
        f"{package}.{name}" for name in (*names, "fault_injection.fault_kinds")
    )


def test_a_job_is_validated_without_the_messages_of_agents_and_without_the_planner() -> None:
    probe = (
        "import sys\n"
        "from trainmaster_operator.cli.main import main\n"
        "code = main(['validate', 'manifests/examples/stdlib-gpt.yaml'])\n"
        "parts = ('trainmaster.contract.wire.', 'trainmaster_operator.planning.', 'asyncio', 'torch')\n"
        "print(code, *sorted(name for name in sys.modules if name.startswith(parts)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], env=dict(os.environ), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1].split() == [
        "0",
        "trainmaster.contract.wire.causes_and_exit_codes",
        "trainmaster.contract.wire.environment",
        "trainmaster_operator.planning.facts",
        "trainmaster_operator.planning.facts.counted_nouns",
    ]
