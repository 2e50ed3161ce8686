"""How many nodes a cluster may have, and which one is added."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from e2e.cluster import __main__ as program
from e2e.cluster import nodes
from e2e.cluster.nodes import Node
from e2e.cluster.places import MAX_NODES
from e2e.cluster.shell import ClusterError


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folders of nodes lie. None of them is started."""
    monkeypatch.setattr(nodes, "node_folder", lambda number: tmp_path / f"node{number}")
    monkeypatch.setattr(Node, "up", lambda node: node.folder.mkdir())
    monkeypatch.setattr(Node, "wait_ready", lambda _: None)
    return tmp_path


def test_the_first_node_that_is_missing_is_added(folders: Path) -> None:
    for number in range(1, MAX_NODES + 1):
        if number != 4:
            (folders / f"node{number}").mkdir()
    assert nodes.add().number == 4
    with pytest.raises(ClusterError, match=f"there are {MAX_NODES} nodes already"):
        nodes.add()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["up", "--nodes", "0"], "--nodes is 0: a cluster has 1 to 9 nodes"),
        (["up", "--nodes", "10"], "--nodes is 10: a cluster has 1 to 9 nodes"),
        (["node", "add", "5"], "`node add` takes no number: it makes the first one that is missing"),
    ],
)
def test_a_number_that_means_nothing_is_refused_before_anything_is_done(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise ClusterError("something was done")

    monkeypatch.setattr(program, "alone", nullcontext)
    monkeypatch.setattr(program, "_require_cluster", lambda: None)
    monkeypatch.setattr(program.packages, "require_root", lambda: None)
    monkeypatch.setattr(program.packages, "install", refuse)
    monkeypatch.setattr(program.nodes, "add", refuse)
    assert program.main(words) == 1
    assert capsys.readouterr().err == f"e2e.cluster: {sentence}\n"
