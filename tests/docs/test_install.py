"""There is one way to have the command, README shows it before it uses it, and no page or message tells of another."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from pathlib import Path

import pytest
import tomllib
import yaml

from tests.docs.blocks import read
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.this_machine import trainer_process

ROOT = Path(__file__).parents[2]


def test_readme_installs_the_command_before_it_uses_it() -> None:
    blocks, _ = read((ROOT / "README.md").read_text(), "README.md")
    commands = [" ".join(command.words) for block in blocks for command in block.commands]
    first = next(number for number, text in enumerate(commands) if text.startswith("trainmaster "))
    assert commands[:first] == ["make demo", "make test", "make venv", ". .venv/bin/activate"]


def test_the_command_is_what_the_package_installs() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["trainmaster"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_nothing_tells_to_install_a_package_that_no_index_has() -> None:
    documents = [
        page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"
    ]  # they tell of before
    pages = [*ROOT.glob("*.md"), *documents, *(ROOT / "charts").rglob("*.md"), ROOT / "Makefile"]
    sources = [path for name in ("operator", "trainer", "benchmarks") for path in (ROOT / name).rglob("*.py")]
    assert ROOT / "docs" / "frameworks" / "jax.md" in pages
    assert len(sources) > 200
    wrong = re.compile(r"(?:pipx?|tool)\s+install\s+(-\S+\s+)*['\"`]*trainmaster\b")
    assert [path for path in (*pages, *sources) if wrong.search(path.read_text())] == []


def test_every_package_that_development_needs_is_installed() -> None:
    """Tests of a library that is missing skip themselves."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    of_development = [words for name, lines in extras.items() if name not in ("bench", "docs") for words in lines]
    needed = {re.split(r"[\[<>=~!]", words)[0] for words in of_development}
    assert {"accelerate", "transformers", "torch", "mlflow-skinny"} <= needed
    installed = {found.metadata["Name"].lower().replace("_", "-") for found in importlib.metadata.distributions()}
    assert {name.lower() for name in needed} - installed == set()


def test_a_missing_library_is_named_as_its_index_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_process.importlib.util, "find_spec", lambda name: None if name == "pyarrow" else name)
    with pytest.raises(Refusal, match=r"^tokenize needs pyarrow, which .* pip install pyarrow$"):
        trainer_process.check_installed("tokenize", "tokenizers", "pyarrow")


def test_the_requests_that_the_page_lists_are_those_of_the_examples() -> None:
    """People size their nodes by this table."""
    page = (ROOT / "docs" / "install.md").read_text()
    rows = re.findall(r"^\| \[([\w.-]+\.yaml)\]\(\S+\) \| (\d+) \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    assert len(rows) == 3
    for name, pods, each, together in rows:
        workers = yaml.safe_load((ROOT / "manifests" / "examples" / name).read_text())["spec"]["workers"]
        (container,) = workers["template"]["spec"]["containers"]
        resources = container["resources"]
        assert int(pods) == workers["replicas"], name
        if gpus := resources["limits"].get("nvidia.com/gpu"):
            assert (each, together) == (f"{gpus} GPUs", f"{gpus * int(pods)} GPUs"), name
        else:
            cpus, gib = int(resources["requests"]["cpu"]), int(resources["requests"]["memory"].removesuffix("Gi"))
            assert each == f"{cpus} CPU, {gib} GiB", name
            assert together == f"{cpus * int(pods)} CPU, {gib * int(pods)} GiB", name
