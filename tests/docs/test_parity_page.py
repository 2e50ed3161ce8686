"""docs/parity.md is what `trainmaster parity --page` writes. Its rows take minutes, so only its words are compared."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT
from trainmaster.tools.parity.parity_table import page
from trainmaster.tools.parity.rows import LOSS_TOLERANCE, ROWS

PAGE = (ROOT / "docs" / "parity.md").read_text()


def test_the_page_begins_as_the_command_writes_it() -> None:
    assert PAGE.startswith(page([]))


def test_the_page_has_every_row_with_its_tolerance() -> None:
    found = re.findall(r"^\| (\S+ .+?) \| (.+?) \| (\d+) \| \S+ \| (\S+) \| \S+ \|$", PAGE, re.MULTILINE)
    expected = [(str(row), row.covers, str(row.ranks), f"{row.tolerance or LOSS_TOLERANCE:.0e}") for row in ROWS]
    assert found == expected
