"""Shell completion: bash is asked what it offers, as it asks itself when a person presses Tab."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from trainmaster.rank import injected_faults
from trainmaster_operator.cli import command_table
from trainmaster_operator.cli.main import main
from trainmaster_operator.cli.trainer_tools.shell_completion import described, script

Offered = Callable[[str], set[str]]

_ASK = """
complete() { registered=$*; }
source ./completion.bash
[[ $registered == "-F _trainmaster trainmaster" ]] || exit 1
unset -f complete
COMP_WORDS=(@LINE@)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_trainmaster
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script_of_bash() -> str:
    return script("bash")


@pytest.fixture
def offered(tmp_path: Path, script_of_bash: str) -> Offered:
    """What bash offers for the last word of a line; a line that ends with a space has an empty last word."""
    (tmp_path / "completion.bash").write_text(script_of_bash)
    (tmp_path / "job.yaml").touch()
    (tmp_path / "my data").mkdir()
    (tmp_path / "runs" / "my-gpt").mkdir(parents=True)

    def ask(line: str) -> set[str]:
        words = [*shlex.split(line), *([""] if line.endswith(" ") else [])]
        text = _ASK.replace("@LINE@", shlex.join(words))
        done = subprocess.run(
            ["bash", "--norc", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stderr == ""
        return set(done.stdout.split("\n")) - {""}

    return ask


def test_the_commands_are_offered_first(offered: Offered) -> None:
    names = {name for group in command_table.GROUPS.values() for name in group}
    assert offered("trainmaster ") == names | {"--help", "--version"}
    assert offered("trainmaster re") == {"report", "restart"}


def test_the_options_of_a_command_are_offered_after_a_dash(offered: Offered) -> None:
    assert offered("trainmaster run --f") == {"--fault", "--fresh"}
    assert {"--namespace", "-n", "--watch"} <= offered("trainmaster status my-gpt -")
    assert offered("trainmaster delete --f") == set()


def test_files_are_offered_where_a_file_is_expected(offered: Offered) -> None:
    files = {"job.yaml", "my data", "runs", "completion.bash"}
    assert offered("trainmaster run ") == files
    assert offered("trainmaster validate --cluster j") == {"job.yaml"}
    assert offered("trainmaster run job.yaml ") == set()
    assert offered("trainmaster status --kubeconfig j") == {"job.yaml"}


def test_folders_are_offered_where_a_folder_is_expected(offered: Offered) -> None:
    assert offered("trainmaster run job.yaml --out ") == {"my data", "runs"}


def test_a_run_is_offered_by_its_folder_and_by_its_name(offered: Offered) -> None:
    assert offered("trainmaster logs ") == {"my data", "runs", "my-gpt"}
    assert offered("trainmaster logs --rank 3 my-") == {"my-gpt"}
    assert offered("trainmaster logs --rank ") == set()
    assert offered("trainmaster status runs/") == {"runs/my-gpt"}


def test_the_kinds_of_faults_are_offered(offered: Offered) -> None:
    assert offered("trainmaster run job.yaml --fault ") == {f"{kind}:" for kind in injected_faults.KINDS}
    assert offered("trainmaster fault my-gpt kill:rank=1 kill-a") == {"kill-agent:"}
    assert offered("trainmaster fault ") == set()


def test_choices_are_offered(offered: Offered) -> None:
    assert offered("trainmaster completion ") == {"bash", "zsh", "fish"}
    assert offered("trainmaster nothing ") == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_has_every_command_and_every_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for command in described():
        lines = _of_command(shell, command.name, text)
        for option in command.options:
            for name in option.names:
                wanted = name if shell != "fish" else f"-l {name[2:]}" if name[:2] == "--" else f"-s {name[1:]}"
                assert re.search(rf"(?<![\w-]){re.escape(wanted)}(?![\w-])", lines), (command.name, name)


def _of_command(shell: str, name: str, text: str) -> str:
    """The part of a script that is about one command."""
    if shell == "fish":
        return "\n".join(line for line in text.splitlines() if f"__fish_seen_subcommand_from {name}'" in line)
    return text.partition(f"\n        {name})\n")[2].partition(";;")[0]
