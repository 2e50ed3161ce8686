"""Which blocks of an old text a new one changes."""

from __future__ import annotations

import ast

import pytest

from tests.suite.reach.blocks import block_of_line, split
from tests.suite.reach.changes import compare

OLD = '''"""What it is."""

from __future__ import annotations

import os

LIMIT = 3


def first(values):
    """Return something."""
    if not values:
        return None
    for value in values:
        use(value)
    return LIMIT


class Thing(Base):
    """A schema shows this."""

    size = 1

    def second(self):
        """Nobody reads this."""
        try:
            go()
        except OSError:
            give_up()
'''

LINES = {
    "module": "LIMIT = 3",
    "guard": "if not values:",
    "guarded": "return None",
    "rest": "return LIMIT",
    "loop": "use(value)",
    "method": "try:",
    "tried": "go()",
    "handler": "give_up()",
}
"""A line that lies in the block of this name."""


def number(name: str) -> int:
    """Return the number of a block of OLD."""
    lines = [line.strip() for line in OLD.splitlines()]
    return block_of_line(split(ast.parse(OLD)), lines.index(LINES[name]) + 1)


def test_each_of_the_lines_lies_in_a_block_of_its_own() -> None:
    assert len({number(name) for name in LINES}) == len(LINES)


@pytest.mark.parametrize(
    ("old", "new", "block"),
    [
        ("        return None", "        log()\n        return None", "guarded"),
        ("if not values:", "if values:", "guard"),
        ("    if not values:\n        return None\n", "", "guard"),
        ("        use(value)", "        use(value, 2)", "loop"),
        ("        use(value)", "        use(value)\n        again(value)", "loop"),
        ("    return LIMIT", "    return LIMIT + 1", "rest"),
        ("    for value in values:", "    begin()\n    for value in values:", "rest"),
        ("for value in values:", "for value in sorted(values):", "rest"),
        ("            go()", "            go()\n            on()", "tried"),
        ("except OSError:", "except ValueError:", "method"),
        ("            give_up()", "            pass", "handler"),
        ("LIMIT = 3", "LIMIT = 4", "module"),
        ("import os", "import os\nimport yaml", "module"),
        ("import os", "import os\nfrom values import use", "module"),
        ("import os", "", "module"),
        ("from __future__ import annotations\n", "", "module"),
        ("from __future__ import annotations", "from __future__ import annotations, division", "module"),
        ("def first(values):", "@cache\ndef first(values):", "module"),
        ("class Thing", "class More:\n    pass\n\n\nclass Thing", "module"),
        ("class Thing", "@register\ndef third():\n    pass\n\n\nclass Thing", "module"),
        ("class Thing", "def use():\n    pass\n\n\nclass Thing", "module"),
        ("    size = 1\n", "    size = 1\n\n    def third(self):\n        pass\n", "module"),
        ("def first(values):", "def first(values, more):", "guard"),
        ("def second(self):", "def second(self, more=None):", "method"),
        ("    size = 1", "    size = 2", "module"),
        ("A schema shows this", "A schema shows that", "module"),
    ],
)
def test_a_change_counts_for_the_block_in_which_it_lies(old: str, new: str, block: str) -> None:
    assert old in OLD
    change = compare(OLD, OLD.replace(old, new))
    assert change.blocks == {number(block)}
    assert change.module_level == (block == "module")


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("import os", "import os\nimport sys", {"sys"}),
        ("import os", "import os\nfrom os import path, sep", {"path", "sep"}),
        ("class Thing", "def third():\n    pass\n\n\nclass Thing", {"third"}),
    ],
)
def test_a_new_function_and_a_new_name_of_a_known_module_touch_only_who_mentions_them(
    old: str, new: str, names: set[str]
) -> None:
    change = compare(OLD, OLD.replace(old, new))
    assert (change.blocks, change.bound, change.loads) == (frozenset(), names, True)


@pytest.mark.parametrize("new", ["from os import sep", "from os import path as sep, path", "from os import *"])
def test_an_imported_name_that_stands_for_something_else_or_is_still_used_counts_for_the_module(new: str) -> None:
    old = "from os import path, sep\n\ndef f():\n    return path, sep\n"
    assert compare(old, old.replace("from os import path, sep", new)).blocks == {0}


def test_a_future_import_counts_for_the_module() -> None:
    assert compare("x = 1\n", "from __future__ import annotations\n\nx = 1\n").blocks == {0}


def test_an_imported_name_that_nobody_uses_any_more_counts_for_no_block() -> None:
    change = compare("from os import path, sep\nf(sep)\n", "from os import sep\nf(sep)\n")
    assert (change.blocks, change.bound) == (frozenset(), {"path"})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 3  # seconds"),
        ("LIMIT = 3", "LIMIT = (\n    3\n)"),
        ("Return something.", "Return something else."),
        ('    """Return something."""\n', ""),
        ("What it is.", "What it was."),
        ("Nobody reads this.", "Nobody reads that."),
        ("LIMIT = 3\n", 'LIMIT = 3\n"""How many."""\n'),
    ],
)
def test_comments_formatting_and_docstrings_that_nobody_reads_change_nothing(old: str, new: str) -> None:
    assert old in OLD
    assert compare(OLD, OLD.replace(old, new)).empty


def test_docstrings_count_in_a_module_that_reads_its_own() -> None:
    old = OLD + "\nprint(__doc__)\n"
    assert compare(old, old.replace("What it is.", "What it was.")).blocks == {0}


def test_what_comes_after_the_last_guard_counts_for_the_block_of_the_guard() -> None:
    old = "def f(x):\n    begin()\n    if x:\n        return\n"
    change = compare(old, f"{old}    go_on()\n")
    assert change.blocks == {block_of_line(split(ast.parse(old)), 2)}


def test_a_new_branch_counts_for_the_block_that_branches() -> None:
    old = "def f(x):\n    if x:\n        a()\n"
    change = compare(old, f"{old}    else:\n        b()\n")
    assert change.blocks == {block_of_line(split(ast.parse(old)), 2)}


def test_a_removed_file_and_a_text_that_is_no_python_change_all_of_the_module() -> None:
    assert compare(OLD, None).blocks == {0}
    assert compare(OLD, "def").blocks == {0}


def test_the_names_of_changed_functions_are_told() -> None:
    change = compare(OLD, OLD.replace("give_up()", "go_on()").replace("use(value)", "use()"))
    assert change.names == ("Thing.second", "first")
