"""The pages that are generated: all fields of a job, the API of tm, the example jobs, the list of decisions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import trainmaster
from docs.generate import __main__ as command
from docs.generate import api_page, decisions_page, examples_page, fields_page
from docs.generate.api_page import ApiError
from tests.api.test_crd import schemas, spec_schema
from trainmaster_operator.api.crd import cel_rules

PACKAGE = '"""A package."""\n_LAZY = {"begin": "trainmaster.told", "Thing": "trainmaster.parts"}\n'
TOLD = 'def begin(where: str = "") -> None:\n    """Begin.\n\n    - `where`: a folder."""\n'
PARTS = "from trainmaster.thing import Thing\n"
THING = '''
class Thing:
    """A thing."""

    size: int = 0
    """Its size."""

    @property
    def step(self) -> int:
        """The last step."""

    def tell(self, loss: float, *, step: int = 1) -> None:
        """Tell it."""

    def _hidden(self) -> None: ...
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(api_page, "_MORE", {})
    folder = tmp_path / api_page.PACKAGE
    folder.mkdir(parents=True)
    for name, text in {"__init__": PACKAGE, "told": TOLD, "parts": PARTS, "thing": THING}.items():
        (folder / f"{name}.py").write_text(text)
    return tmp_path


def test_the_committed_pages_are_as_they_would_be_generated() -> None:
    assert [*command.stale(command.ROOT, command.generated(command.ROOT))] == []


def test_every_field_of_the_schema_is_on_the_page_once() -> None:
    shown, block = [], ""
    for line in fields_page.render().splitlines():
        if heading := re.match(r"#{2,4} (\S+)$", line):
            block = f".{heading[1]}"
        elif line.startswith("## "):
            block = ""  # fields of spec that have no block of their own
        elif field := re.match(r"- \*\*`(\w+)`\*\*", line):
            shown.append(f"{block}.{field[1]}")
    in_schema = {path for path, _ in schemas(spec_schema()) if re.search(r"\.\w+$", path)}
    blocks = {".checkpoint", ".recovery", ".scheduling", ".training", ".workers"}  # each is a heading
    assert sorted(path.replace("[]", "") for path in in_schema - blocks) == sorted(shown)


def test_a_field_is_shown_with_its_type_its_limits_and_its_description() -> None:
    page = fields_page.render()
    assert (
        "- **`replicas`** (integer, at least 1, at most 100000): Number of pods that are to train: the target. If "
        "neither `workers.min` nor" in page
    )
    assert "- **`steps`** (integer, required, at least 1): Number of optimizer steps" in page
    assert "- **`batch`** (object, required): see [training.batch](#trainingbatch)." in page
    assert "[models.md](models.md)" in page


def test_every_rule_across_fields_is_on_the_page() -> None:
    last = fields_page.render().partition("## What is refused")[2]
    assert last.count("\n- ") == len(cel_rules.SPEC_RULES) + len(cel_rules.RULE_RULES)


def test_all_public_names_of_the_trainer_are_on_the_page() -> None:
    page = api_page.render(command.ROOT)
    public = set(trainmaster.__all__) - {"__version__"}
    assert public == {name for name in public if f"\n## tm.{name}\n" in page}


def test_the_page_has_signatures_docstrings_members_and_fields(package: Path) -> None:
    page = api_page.render(package)
    assert "## tm.begin\n\n`begin(where: str = '') -> None`\n\nBegin.\n\n- `where`: a folder.\n" in page
    assert "## tm.Thing\n\nA thing.\n" in page
    assert "### Thing.size\n\n`size: int`\n\nIts size.\n" in page
    assert "### Thing.step\n\n`step`\n\nThe last step.\n" in page
    assert "### Thing.tell\n\n`tell(loss: float, *, step: int = 1) -> None`\n\nTell it.\n" in page
    assert "_hidden" not in page


def test_a_public_name_without_a_docstring_is_refused(package: Path) -> None:
    (package / api_page.PACKAGE / "told.py").write_text("def begin() -> None: ...\n")
    with pytest.raises(ApiError, match="begin is public and has no docstring"):
        api_page.render(package)


def test_a_public_name_that_its_module_lacks_is_refused(package: Path) -> None:
    (package / api_page.PACKAGE / "told.py").write_text("")
    with pytest.raises(ApiError, match=r"trainmaster\.told has no begin"):
        api_page.render(package)


def test_each_example_is_a_block_below_a_heading_of_its_name(tmp_path: Path) -> None:
    (tmp_path / examples_page.FOLDER).mkdir(parents=True)
    (tmp_path / examples_page.FOLDER / "small.yaml").write_text("# a job\nkind: Job\n")
    assert examples_page.render(tmp_path).endswith("\n## small\n\n```yaml\n# a job\nkind: Job\n```\n")


def test_the_list_of_decisions_has_their_titles_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    (tmp_path / decisions_page.FOLDER).mkdir(parents=True)
    for name, text in {"002-b.md": "# 002 · B\n", "001-a.md": "# 001 · A\n", "README.md": "# All\n"}.items():
        (tmp_path / decisions_page.FOLDER / name).write_text(text)
    assert decisions_page.render(tmp_path).endswith("\n\n- [001 · A](001-a.md)\n- [002 · B](002-b.md)\n")
