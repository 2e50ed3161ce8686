"""docs/models.md lists every option of every built-in model, with its type and its default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainmaster.contract.config import ModelConfig
from trainmaster.models import MODELS

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
TYPES = {int: "integer", float: "number", bool: "true or false"}


def listed(model: str) -> list[tuple[str, str, str]]:
    """(option, type, default) of each row of a model's table."""
    section = PAGE.split(f"\n### {model}\n", 1)[1].split("\n#", 1)[0]
    return re.findall(r"^\| `(\w+)` \| ([\w ]+) \| (\S+) \|", section, re.MULTILINE)


@pytest.mark.parametrize("model", MODELS)
def test_the_page_has_each_option_of_a_model_with_its_type(model: str) -> None:
    fields = MODELS[model].model_fields
    assert [(name, kind) for name, kind, _ in listed(model)] == [
        (name, TYPES[field.annotation]) for name, field in fields.items() if field.annotation in TYPES
    ]
    assert len(listed(model)) == len(fields)


@pytest.mark.parametrize("model", MODELS)
def test_the_page_has_the_default_of_each_option(model: str) -> None:
    for name, kind, default in listed(model):
        known = MODELS[model].model_fields[name].default
        assert (default == "true" if kind == "true or false" else float(default)) == known, name


@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_the_description_of_the_field_names_every_option(model: str) -> None:
    text = ModelConfig.model_fields["options"].description or ""
    assert [name for name in MODELS[model].model_fields if not re.search(rf"\b{name}\b", text)] == []
