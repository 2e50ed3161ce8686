"""Which Python runs the scripts of a local run, and what is said of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainmaster.contract.wire import environment
from trainmaster.host import interpreters
from trainmaster_operator.cli.this_machine.script_interpreter import choose, of_command
from trainmaster_operator.local.inherited_variables import base_environment


def python(folder: Path, answer: object) -> str:
    """The folder of a program in the place of a Python, which tells this of itself."""
    folder.mkdir()
    (folder / "python").write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    (folder / "python").chmod(0o755)
    return str(folder)


def test_the_python_of_path_is_taken_where_it_has_torch(tmp_path: Path) -> None:
    path = f"{tmp_path}/venv/bin/python"
    found = choose(python(tmp_path / "shims", [path, "3.12.1", "2.9.0"]))
    assert found.path == path
    assert found.words == f"scripts run by {path} (Python 3.12.1, torch 2.9.0), which PATH has"


def test_ours_is_taken_and_named_where_that_of_path_has_no_torch(tmp_path: Path) -> None:
    found = choose(python(tmp_path / "bin", ["/usr/bin/python3", "3.12.1", ""]))
    assert found.path == ""
    assert found.words.startswith(f"scripts run by {sys.executable} (Python ")
    assert found.words.endswith("that of Trainmaster: /usr/bin/python3, which PATH has, has no torch")


def test_ours_is_taken_where_path_has_none_or_one_that_fails(tmp_path: Path) -> None:
    assert choose(str(tmp_path)).words.endswith("that of Trainmaster, since PATH has none")
    broken = choose(python(tmp_path / "bin", "nothing of use"[:0]))
    assert broken.path == ""


def link_to(tmp_path: Path, name: str, program: str) -> str:
    """A link `bin/python` to a program, in a folder that is a virtual environment if its name says so."""
    link = tmp_path / name / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(program)
    if "venv" in name:
        home = Path(program).resolve().parent
        (tmp_path / name / "pyvenv.cfg").write_text(f"home = {home}\n")
    return str(link)


def prefix_of(python: str) -> str:
    """Where an interpreter finds its packages, as it says itself."""
    words = [python, "-I", "-c", "import sys; print(sys.prefix)"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.mark.processes
def test_two_paths_are_one_python_where_both_find_the_same_packages(tmp_path: Path) -> None:
    base = os.path.realpath(sys.executable)
    venv = link_to(tmp_path, "venv", base)
    others = [
        link_to(tmp_path, "links", base),
        link_to(tmp_path, "links-2", venv),
        link_to(tmp_path, "venv-2", base),
        venv,
    ]
    for one in (base, venv):
        found = [interpreters.is_same(one, other) for other in others]
        assert found == [prefix_of(one) == prefix_of(other) for other in others]
        assert {*found} == {True, False}


def test_a_link_on_path_to_ours_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", os.path.realpath(sys.executable))  # no virtual environment
    link = link_to(tmp_path, "local", sys.executable)
    found = choose(os.path.dirname(link))
    assert (found.path, "PATH" in found.words) == ("", False)


def test_ours_on_path_is_ours(tmp_path: Path) -> None:
    found = choose(os.path.dirname(sys.executable))
    assert (found.path, "PATH" in found.words) == ("", False)


def test_ours_is_ours_also_where_a_program_on_path_starts_it_through_a_linked_folder(tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(os.path.dirname(sys.executable))
    path = f"{tmp_path}/linked/another-name-of-python"
    found = choose(python(tmp_path / "shims", [path, "3.12.1", "2.9.0"]))
    assert (found.path, "PATH" in found.words) == ("", False)


@pytest.mark.parametrize(
    "command",
    [
        ["/opt/venv/bin/python", "t.py"],
        ["/opt/venv/bin/torchrun", "t.py"],
        ["env", "X=1", "/opt/venv/bin/python", "t.py"],
    ],
)
def test_the_python_that_a_command_names_is_told(command: list[str]) -> None:
    found = of_command(command, os.path.dirname(sys.executable))
    assert found.words == "scripts run by /opt/venv/bin/python, which the command names"


@pytest.mark.parametrize("command", [["python", "t.py"], ["torchrun", "t.py"], ["bash", "run.sh"], ["mpirun", "t.py"]])
def test_a_command_that_names_no_python_runs_the_chosen_one(command: list[str]) -> None:
    search = os.path.dirname(sys.executable)
    assert of_command(command, search) == choose(search)


@pytest.mark.parametrize(
    ("given", "first", "last"),
    [({}, os.path.dirname(sys.executable), "/usr/bin"), ("own", "/venv/bin", os.path.dirname(sys.executable))],
)
def test_programs_beside_the_python_of_scripts_come_first_in_path(given: object, first: str, last: str) -> None:
    own = {"PATH": "/usr/bin", **({environment.PYTHON: "/venv/bin/python"} if given else {})}
    path = base_environment(own)["PATH"].split(os.pathsep)
    assert (path[0], path[-1]) == (first, last)


def test_the_python_of_path_must_have_the_framework_of_the_job(tmp_path: Path) -> None:
    path = f"{tmp_path}/venv/bin/python"
    folder = python(tmp_path / "shims", [path, "3.12.1", "2.21.0"])
    found = choose(folder, "tensorflow")
    assert found.words == f"scripts run by {path} (Python 3.12.1, tensorflow 2.21.0), which PATH has"
    without = choose(python(tmp_path / "others", [path, "3.12.1", ""]), "tensorflow")
    assert without.path == ""
    assert without.words.endswith(f"that of Trainmaster: {path}, which PATH has, has no tensorflow")
