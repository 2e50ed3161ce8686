"""Commands on a cluster that was made here are for root, and say so to anybody else."""

from __future__ import annotations

import os
from contextlib import nullcontext
from types import ModuleType

import pytest

from e2e.cluster import __main__ as own
from e2e.kind import __main__ as kind

NAMES = {own: ("down", "node", "api_server", "fake_nodes"), kind: ("down", "node", "api_server", "pod")}
COMMANDS = [
    (own, ["down"]),
    (own, ["node", "lose", "2"]),
    (own, ["apiserver", "restart"]),
    (own, ["kwok", "up"]),
    (kind, ["down"]),
    (kind, ["node", "lose", "some"]),
    (kind, ["apiserver", "restart"]),
    (kind, ["pod", "kill", "some", "uid"]),
]


@pytest.mark.parametrize(("program", "words"), COMMANDS)
def test_anybody_else_is_told_so_before_anything_is_done(
    program: ModuleType, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(program, "alone", lambda *_: nullcontext())
    for name in NAMES[program]:
        monkeypatch.setattr(program, name, lambda _, name=name: done.append(name))
    assert program.main(words) == 1
    assert capsys.readouterr().err.endswith(": nodes need namespaces, a bridge and mounts: run this as root\n")
    assert done == []
