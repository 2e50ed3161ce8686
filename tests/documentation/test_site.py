"""mkdocs.yml, and the files that it names: what the builders of the site can't check."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def test_the_search_of_a_site_without_a_server_uses_a_script_of_ours() -> None:
    """Both builders load this script from the network unless a polyfill has its name."""
    assert "offline" in CONFIG["plugins"]
    (script,) = (name for name in CONFIG["extra"]["polyfills"] if "iframe-worker" in name)
    assert (ROOT / "docs" / script).is_file()
