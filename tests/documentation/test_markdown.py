"""What is found in a Markdown page: its links, its headings, and the anchors of these on GitHub and on the site."""

from __future__ import annotations

import pytest

from docs.generate import markdown
from docs.generate.markdown import Heading, Link

PAGE = """# Title

See [a page](a.md#part) and ![a picture](b.png), or [x]. A link in `[code](c.md)` is none.

<!-- [hidden](d.md) -->
```yaml
# [in a block](e.md)
```

<source media="(max-width: 1px)" srcset="i.png"><img src="f.png"> <a href='g.md'>g</a>

## A part: `of x`, and *more*

[x]: h.md
"""


def test_links_and_pictures_are_found_with_their_lines_and_those_in_code_are_not() -> None:
    assert set(markdown.links(PAGE)) == {
        Link("a.md#part", 3),
        Link("b.png", 3, picture=True),
        Link("f.png", 10, picture=True),
        Link("i.png", 10, picture=True),
        Link("g.md", 10),
        Link("h.md", 14),
    }


def test_a_picture_that_is_a_link_gives_both_targets() -> None:
    found = set(markdown.links("[![logo](a.png)](b.md)\n"))
    assert found == {Link("b.md", 1), Link("a.png", 1, picture=True)}


def test_headings_within_blocks_are_no_headings() -> None:
    assert markdown.headings(PAGE) == [Heading(1, "Title"), Heading(2, "A part: `of x`, and *more*")]


@pytest.mark.parametrize(
    ("heading", "on_github", "on_the_site"),
    [
        ("Install, first job", "install-first-job", "install-first-job"),
        ("The file `a.yaml`", "the-file-ayaml", "the-file-ayaml"),
        ("Costs & limits", "costs--limits", "costs-limits"),
        ("See [fields](b.md)", "see-fields", "see-fields"),
        ("Größe", "größe", "groe"),
    ],
)
def test_a_heading_has_the_anchors_that_github_and_the_site_make(
    heading: str, on_github: str, on_the_site: str
) -> None:
    assert markdown.anchors_on_github(f"## {heading}\n") == {on_github}
    assert markdown.anchors_on_the_site(f"## {heading}\n") == {on_the_site}


def test_a_heading_that_comes_twice_has_numbered_anchors_that_differ() -> None:
    assert markdown.anchors_on_github("## Limits\n## Limits\n") == {"limits", "limits-1"}
    assert markdown.anchors_on_the_site("## Limits\n## Limits\n") == {"limits", "limits_1"}
