"""Gathers what the choice looks at: texts and hashes from git, facts of all Python files, the record."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.suite.reach import recordfile
from tests.suite.reach.checkout import Checkout, listings
from tests.suite.reach.choice import Sight
from tests.suite.reach.facts import SCHEME, SOURCE, Facts, Import, read_facts
from tests.suite.reach.graph import Graph

KEPT = Path(".pytest_cache", "reach-facts.json")
"""Facts of files that were read before, by the hash of their content: reading all of them takes seconds."""


def gather(checkout: Checkout, base: str | None, record_file: Path = recordfile.COMMITTED) -> Sight:
    """Return what there is to know about the change since the commit `base`; None: nothing has changed.

    Raises GitError and BadRecord.
    """
    now = checkout.blobs
    before = checkout.blobs_at(base) if base is not None else now
    return Sight(
        blobs_before=before,
        blobs_now=now,
        listings_before=listings(before),
        listings_now=listings(now),
        text_of=checkout.text_of,
        text_now=checkout.text_now,
        graph=read_graph(checkout, [path for path in before if path.endswith(SOURCE) and path not in now]),
        record=recordfile.load(record_file),
    )


def read_graph(checkout: Checkout, removed: Iterable[str] = ()) -> Graph:
    """Return the import graph of the working tree. A file that can't be parsed uses nothing. `removed`: Python files
    that the change has removed."""
    kept_file = checkout.root / KEPT
    kept = _load(kept_file)
    facts, missing = {}, False
    for path in checkout.files:
        if not path.endswith(SOURCE):
            continue
        key = checkout.blobs[path]
        if key not in kept:
            missing = True
            try:
                kept[key] = read_facts(checkout.text_now(path) or "")
            except (SyntaxError, ValueError):
                kept[key] = Facts()
        facts[path] = kept[key]
    if missing:
        _save(kept_file, facts, checkout.blobs)
    return Graph(facts, checkout.files, removed)


def _load(path: Path) -> dict[str, Facts]:
    try:
        raw = json.loads(path.read_text())
        return {blob: _facts(known) for blob, known in raw["facts"].items()} if raw["scheme"] == SCHEME else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _save(path: Path, facts: Mapping[str, Facts], blobs: Mapping[str, str]) -> None:
    kept = {blobs[file]: asdict(known) for file, known in facts.items()}
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_suffix(".fresh")
    fresh.write_text(json.dumps({"scheme": SCHEME, "facts": kept}, separators=(",", ":")))
    fresh.rename(path)


def _facts(raw: Mapping[str, Any]) -> Facts:
    return Facts(
        at_import=[_import(one) for one in raw["at_import"]],
        in_functions=[_import(one) for one in raw["in_functions"]],
        named=raw["named"],
        for_types=[_import(one) for one in raw["for_types"]],
        prefixes=raw["prefixes"],
        files=[(line, path) for line, path in raw["files"]],
        requests=raw["requests"],
        loaded=raw["loaded"],
        at_level=raw["at_level"],
        definitions={name: _facts(one) for name, one in raw["definitions"].items()},
        others=raw["others"],
        always=raw["always"],
    )


def _import(raw: Mapping[str, Any]) -> Import:
    return Import(raw["module"], tuple(raw["names"]), raw["level"], tuple(raw["bound"]))
