"""What `python -m docs.generate --check` finds in links, anchors, tables and the navigation."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.generate import __main__ as command
from docs.generate import link_check
from tests.documentation.repositories import NAV, make


def test_a_repository_in_which_all_is_right_has_no_problems(tmp_path: Path) -> None:
    good = "# A\n\n[b](b.md#a-part), [up](../docs/c/d.md#a-title), [here](#a), [out](https://example.com/x#y)\n"
    make(tmp_path, {"docs/a.md": good, "README.md": "# R\n\n[docs](docs/a.md#a), [folder](docs)\n"})
    assert [*command.problems(tmp_path)] == []


@pytest.mark.parametrize(
    ("page", "link", "problem"),
    [
        ("docs/a.md", "[x](none.md)", "docs/a.md:3: none.md: there is no such file"),
        ("README.md", "[x](docs/none.md)", "README.md:3: docs/none.md: there is no such file"),
        ("docs/a.md", "[x](b.md#none)", "docs/a.md:3: b.md#none: docs/b.md has no such heading"),
        ("docs/a.md", "[x](#none)", "docs/a.md:3: #none: docs/a.md has no such heading"),
        ("README.md", "[x](docs/b.md#none)", "README.md:3: docs/b.md#none: docs/b.md has no such heading"),
        ("docs/a.md", "![x](none.png)", "docs/a.md:3: none.png: there is no such file"),
        ("docs/a.md", '<img src="none.png">', "docs/a.md:3: none.png: there is no such file"),
        ("docs/a.md", "[x](../../etc)", "docs/a.md:3: ../../etc: there is no such file"),
        ("docs/a.md", "[x](/docs/b.md)", "/docs/b.md: a link within the repository is relative to its page"),
        ("docs/a.md", "[x](../README.md)", "the site has only docs/: name the file in code instead, `README.md`"),
        ("docs/a.md", "[x](c)", "the site has no page for a folder: link to a page in it"),
        ("docs/a.md", "![x](https://example.com/x.png)", "a page of the site asks the network for nothing"),
        ("README.md", "[x](mkdocs.yml#nav)", "mkdocs.yml is no page, so it has no anchors"),
    ],
)
def test_a_link_that_leads_nowhere_is_found_with_its_line(tmp_path: Path, page: str, link: str, problem: str) -> None:
    make(tmp_path, {page: f"# A\n\n{link}\n"})
    (found,) = command.problems(tmp_path)
    assert problem in found


def test_an_anchor_that_only_github_has_is_found(tmp_path: Path) -> None:
    make(tmp_path, {"docs/a.md": "# A\n\n[x](b.md#costs--limits)\n", "docs/b.md": "# B\n\n## Costs & limits\n"})
    (found,) = command.problems(tmp_path)
    assert found.endswith("the heading in docs/b.md has another anchor on the site: change its punctuation")


def test_new_pages_are_looked_at_and_those_that_git_ignores_are_not(tmp_path: Path) -> None:
    make(tmp_path, {"docs/new.md": "# New\n", "kept/x.md": "[x](none.md)\n"})
    assert link_check.pages(tmp_path) == [
        "README.md",
        "docs/a.md",
        "docs/b.md",
        "docs/c/d.md",
        "docs/index.md",
        "docs/new.md",
    ]


def test_a_page_that_is_in_no_path_is_found(tmp_path: Path) -> None:
    make(tmp_path, {"docs/new.md": "# New\n"})
    assert [*command.problems(tmp_path)] == ["docs/new.md: the page is in no path of mkdocs.yml"]


@pytest.mark.parametrize(
    ("nav", "problem"),
    [
        (NAV.replace("b.md", "b.md, a.md"), "mkdocs.yml: a.md is 2 times in nav"),
        (NAV.replace("b.md", "b.md, e.md"), "mkdocs.yml: nav has e.md, but there is no docs/e.md"),
        (
            NAV.replace("Contribute", "Other"),
            "mkdocs.yml: nav has the paths Use it, Operate a cluster, Other; "
            "Use it, Operate a cluster, Contribute are expected",
        ),
    ],
)
def test_a_navigation_that_is_not_right_is_found(tmp_path: Path, nav: str, problem: str) -> None:
    make(tmp_path, {"mkdocs.yml": nav})
    assert [*command.problems(tmp_path)] == [problem]


@pytest.mark.parametrize(
    "text", ["A page without a title.\n", "# One\n\n# Two\n", "## A part\n\n# A title\n", "<!-- -->\n\n# A title\n"]
)
def test_a_page_without_one_title_at_its_beginning_is_found(tmp_path: Path, text: str) -> None:
    make(tmp_path, {"docs/a.md": text})
    (found,) = command.problems(tmp_path)
    assert found.startswith("docs/a.md: a page begins with its title")


def test_a_generated_page_that_is_stale_is_found_with_the_difference(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("as it was\n")
    (tmp_path / "docs" / "b.md").write_text("right\n")
    (found,) = command.stale(tmp_path, {"docs/a.md": "as it is\n", "docs/b.md": "right\n"})
    assert found.splitlines()[0] == "docs/a.md is stale: run `make generate`"
    assert {"-as it was", "+as it is"} <= set(found.splitlines())


def test_all_pages_of_this_repository_are_right() -> None:
    assert [*command.problems(command.ROOT)] == []


TABLE = "# A\n\n| a | b |\n| --- | ---: |\n| `x|y` | 1 \\| 2 |\n"


def test_a_table_whose_rows_have_the_cells_of_its_head_is_right(tmp_path: Path) -> None:
    make(tmp_path, {"docs/a.md": f"{TABLE}\n```\n| a | b |\n| --- | --- |\n| c |\n```\n"})
    assert [*command.problems(tmp_path)] == []


@pytest.mark.parametrize("row", ["| c |", "| c | d | e |", "| c | d", "c"])
def test_a_row_with_other_cells_than_the_head_of_its_table_is_found_with_its_line(tmp_path: Path, row: str) -> None:
    make(tmp_path, {"docs/a.md": f"{TABLE}{row}\n"})
    (found,) = command.problems(tmp_path)
    assert found.startswith("docs/a.md:6: the row has ")
