"""docs/architecture.md against the code: the layers, the pictures, and every path in it."""

from __future__ import annotations

import re

import tomllib

from tests.docs.blocks import ROOT, read

PAGE = "docs/architecture.md"
TEXT = (ROOT / PAGE).read_text()
PICTURES = re.findall(r"\]\((pictures/[\w-]+\.svg)\)", TEXT)
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def test_the_layers_of_the_page_are_those_that_are_checked() -> None:
    blocks = [block.text.splitlines() for block in read(TEXT, PAGE)[0]]
    layers = [contract["layers"] for contract in CONTRACTS if "layers" in contract and "containers" not in contract]
    operator, trainer, agent = layers
    assert [line.replace("trainmaster_operator.", "") for line in operator] in blocks
    assert [line.replace("trainmaster.", "") for line in trainer] in blocks
    assert agent == ["trainmaster.agent.shell : trainmaster.agent.zygote", *trainer[2:]]


def test_every_package_that_must_not_import_something_is_in_the_table_of_rules() -> None:
    rules = TEXT.partition("\n| rule | why |\n")[2].partition("\n\n")[0]
    sources = {module for contract in CONTRACTS for module in contract.get("source_modules", [])}
    assert len(sources) > 5
    missing = [name for name in sources if not {f"`{name}`", f"`{name.rpartition('.')[2]}`"} & set(_spans(rules))]
    assert missing == []


def _spans(text: str) -> list[str]:
    return re.findall(r"`[^`]+`", text)


def test_the_page_has_at_most_200_lines_and_three_pictures() -> None:
    assert len(TEXT.splitlines()) <= 200
    assert len(PICTURES) == 3


def test_every_path_of_the_page_exists() -> None:
    files = [span.strip("`") for span in _spans(TEXT) if re.fullmatch(r"`[\w./-]+(/|\.py)`", span)]
    roots = (ROOT, ROOT / "operator" / "trainmaster_operator")
    assert len(files) > 10
    assert [file for file in files if not any((root / file).exists() for root in roots)] == []
