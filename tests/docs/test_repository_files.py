"""Files at the top of the repository that tools and forges read: what they name exists, and they agree."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import pytest
import tomllib
import yaml

from tests.docs import spoken
from tests.docs.blocks import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
FORMS = [ROOT / ".github" / "ISSUE_TEMPLATE" / name for name in ("bug.yml", "feature.yml")]
TEMPLATE = ROOT / ".github" / "pull_request_template.md"
VALUELESS = ("markdown",)


def recipe(target: str) -> list[str]:
    """Return the commands of a target of the Makefile, with the folder of programs filled in."""
    lines = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert lines is not None
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in lines[1].splitlines()]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_is_a_part_of_make_verify(hook: dict[str, object]) -> None:
    entry = str(hook["entry"])
    if entry.startswith("make "):
        assert [*spoken.problems(shlex.split(entry))] == []
        assert hook["stages"] == ["pre-push"], "make renews .venv where that is due, which a commit must not do"
    else:
        assert entry in [*recipe("verify"), *recipe("lint")]


def test_no_hook_is_fetched_from_anywhere() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in HOOKS} == {"system"}


def test_what_a_hook_looks_at_exists() -> None:
    files = [path for path in ROOT.rglob("*.py") if ".venv" not in path.parts]
    names = [str(path.relative_to(ROOT)) for path in [*files, *ROOT.glob("*.toml"), *ROOT.glob("manifests/crd/*")]]
    for hook in HOOKS:
        for pattern in re.split(r"(?<=\$)\||\|(?=\^)", hook.get("files", "")):
            assert any(re.search(pattern, name) for name in names), f"{hook['id']}: no file fits {pattern}"


def test_editors_break_lines_of_python_where_ruff_does() -> None:
    settings = configparser.ConfigParser()
    settings.read_string("[top]\n" + (ROOT / ".editorconfig").read_text())
    assert settings["*.py"]["max_line_length"] == str(PYPROJECT["tool"]["ruff"]["line-length"])


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.stem)
def test_a_form_for_issues_is_one_that_forges_accept(file: Path) -> None:
    form = yaml.safe_load(file.read_text())
    assert {"name", "description", "body"} <= set(form)
    asked = [part for part in form["body"] if part["type"] not in VALUELESS]
    assert {part["type"] for part in asked} <= {"checkboxes", "dropdown", "input", "textarea"}
    assert all(part["attributes"]["label"] for part in asked)
    names = [part["id"] for part in asked]
    assert len(names) == len({*names}) == len(asked)


@pytest.mark.parametrize("file", [*FORMS, TEMPLATE], ids=lambda file: file.stem)
def test_every_command_that_a_form_or_template_names_exists(file: Path) -> None:
    spans = re.findall(r"`([^`]+)`", " ".join(file.read_text().split()))
    assert spans
    assert [problem for span in spans for problem in spoken.problems_of_a_mention(span)] == []


def test_the_newest_changes_are_those_of_no_release_or_of_this_version() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] in ("Unreleased", PYPROJECT["project"]["version"])


def test_the_dockerfile_that_adds_packages_ends_with_the_user_of_the_trainers_image() -> None:
    def users(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("USER ")]

    root = Path(__file__).parents[2]
    shown = (root / "docs/images-and-volumes.md").read_text().split("FROM registry.example.com/team/trainer:")[1]
    assert users(shown.split("```")[0])[-1] == users((root / "docker/trainer.Dockerfile").read_text())[-1]
