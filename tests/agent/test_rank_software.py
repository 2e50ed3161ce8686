"""What an agent tells of its ranks' software, without running or importing it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import trainmaster
from trainmaster.agent.shell.launching import rank_software
from trainmaster.agent.shell.launching.agent_settings import Settings
from trainmaster.contract.wire import environment

IDENTITY = {
    environment.JOB_UID: "uid",
    environment.NAMESPACE: "default",
    environment.JOB: "job",
    environment.ROLE: "worker",
    environment.SLOT: "0",
    environment.INCARNATION: "0",
    environment.POD_UID: "pod",
    environment.OPERATOR_URL: "http://127.0.0.1:1",
    environment.PROGRAM: "5f1c0a9b",
}


def told(command: list[str], **variables: str) -> dict[str, str]:
    words = {**IDENTITY, environment.FRAMEWORK: "PyTorch", environment.COMMAND: json.dumps(command)}
    return asyncio.run(rank_software.read(Settings.read({"PATH": os.environ["PATH"], **words, **variables})))


def program(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_script_of_the_agents_own_python_is_told_with_what_is_installed_here(tmp_path: Path) -> None:
    found = told(["python", program(tmp_path, "train.py", "import torch, pydantic\n")])
    assert found.pop("torch").startswith("2.")
    assert found == {
        "command": "5f1c0a9b",
        "Python": sys.version.split()[0],
        "trainmaster": trainmaster.__version__,
    }


def test_our_own_loop_is_told_by_its_config() -> None:
    found = told([], **{environment.FRAMEWORK: "Trainmaster", environment.CONFIG: "{}"})
    assert (found["config"], found["Python"]) == ("5f1c0a9b", sys.version.split()[0])


def test_another_environments_python_is_asked_itself(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    python = program(
        tmp_path, "python3", f'#!/bin/sh\necho "$@" > {asked}\necho \'{{"Python": "3.12.1", "torch": "2.13.0"}}\'\n'
    )
    found = told([python, program(tmp_path, "train.py", "from lightning import Trainer\n")])
    assert (found["Python"], found["torch"]) == ("3.12.1", "2.13.0")
    assert asked.read_text().split()[-2:] == ["torch", "lightning"]


def test_the_program_that_asks_another_python_runs_there() -> None:
    found = asyncio.run(rank_software.ask(sys.executable, ["pydantic", "no-such-package"], dict(os.environ)))
    assert set(found) == {"Python", "pydantic"}


@pytest.mark.parametrize("text", ["exit 1", "echo nonsense", "echo 5"])
def test_a_python_that_does_not_answer_tells_no_versions(tmp_path: Path, text: str) -> None:
    python = program(tmp_path, "python3", f"#!/bin/sh\n{text}\n")
    assert set(told([python, "train.py"])) == {"command", "trainmaster"}


def test_a_program_that_is_no_python_tells_no_versions() -> None:
    assert set(told(["bash", "train.sh"])) == {"command", "trainmaster"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import jax.numpy as jnp\n", ["jax"]),
        ("def f():\n    from transformers import Trainer\n", ["transformers"]),
        ("import jaxtyping\n# import tensorflow\n", []),
    ],
)
def test_the_frameworks_that_a_script_imports_are_found_in_its_text(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    command: Any = Settings.read(
        {
            **IDENTITY,
            environment.FRAMEWORK: "PyTorch",
            environment.COMMAND: json.dumps(["python", program(tmp_path, "train.py", text)]),
        }
    ).command
    assert rank_software.frameworks_of(command) == expected
