"""How a browser draws pages: a headless Chromium lays each of them out in frames of several widths, and measures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any

SETTLE_MS = 3000
"""Virtual time in which all frames must be laid out."""
LIMIT_S = 120

_MEASURE = (Path(__file__).parent / "measure_page.js").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Look:
    """A page in a frame of this width, on a screen with this colour scheme (light or dark)."""

    page: str
    width: int
    scheme: str


def chromium() -> str | None:
    """Return the program; None where it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def measure(pages: Mapping[str, str], looks: Sequence[Look], folder: Path) -> dict[Look, dict[str, Any]]:
    """Return what measure_page.js finds in each look. `pages`: HTML by name. `folder`: for files of the browser."""
    program = chromium()
    assert program is not None
    frames = "".join(
        f'<iframe style="display: block; border: 0; width: {look.width}px; height: 900px; color-scheme: {look.scheme}" '
        f'srcdoc="{escape(pages[look.page])}"></iframe>'
        for look in looks
    )
    file = folder / "frames.html"
    file.write_text(
        f'<!doctype html><meta charset="utf-8"><body style="margin: 0">{frames}<pre id="found"></pre>'
        f"<script>{_MEASURE}</script>",
        encoding="utf-8",
    )
    command = [
        *(program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
        *(f"--user-data-dir={folder / 'profile'}", f"--virtual-time-budget={SETTLE_MS}", "--dump-dom", file.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    found = re.search(r'<pre id="found">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr
    return dict(zip(looks, json.loads(unescape(found[1])), strict=True))
