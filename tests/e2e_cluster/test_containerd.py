"""A new node's copy of the images: hard links, but for what containerd writes in place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from e2e.cluster import containerd


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "template" / "root"
    for name in (*containerd._DATABASES, "layer"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("the template's")
    monkeypatch.setattr(containerd, "_TEMPLATE", tmp_path / "template")
    return root


def test_a_node_shares_layers_with_the_template_and_has_databases_of_its_own(template: Path, tmp_path: Path) -> None:
    target = tmp_path / "node1" / "containerd"
    containerd.clone_template(target)
    for name in containerd._DATABASES:
        (target / name).write_text("the node's")
        assert (template / name).read_text() == "the template's"
    assert (target / "layer").samefile(template / "layer")


def test_a_copy_that_was_interrupted_is_made_again(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its databases would still be those of the template, and containerd would write there for all nodes to come."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    target = tmp_path / "node1" / "containerd"
    with monkeypatch.context() as interrupted:
        interrupted.setattr(shutil, "copy2", interrupt)
        with pytest.raises(KeyboardInterrupt):
            containerd.clone_template(target)
    assert not target.exists()
    containerd.clone_template(target)
    assert [(target / name).samefile(template / name) for name in containerd._DATABASES] == [False, False]
