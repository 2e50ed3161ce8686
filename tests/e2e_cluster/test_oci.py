"""Images of the end-to-end cluster: what is written, shared and forgotten."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from e2e.cluster.oci import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "layout")


def root(tmp_path: Path, content: str) -> Path:
    folder = tmp_path / f"root-{content}"
    folder.mkdir()
    (folder / "file").write_text(content)
    return folder


def blobs(archive: Path) -> set[str]:
    with tarfile.open(archive) as tar:
        return {"sha256:" + name.rpartition("/")[2] for name in tar.getnames() if name.startswith("blobs/")}


def test_the_same_files_make_the_same_image(layout: Layout, tmp_path: Path) -> None:
    layout.add("one:e2e", root(tmp_path, "same"), ["/file"])
    (tmp_path / "root-same").rename(tmp_path / "elsewhere")
    layout.add("two:e2e", root(tmp_path, "same"), ["/file"])
    digests = layout.digests()
    assert digests["one:e2e"] == digests["two:e2e"]


def test_an_image_that_is_added_again_replaces_the_old_one(layout: Layout, tmp_path: Path) -> None:
    layout.add("one:e2e", root(tmp_path, "old"), ["/file"])
    old = layout.digests()["one:e2e"]
    layout.add("one:e2e", root(tmp_path, "new"), ["/file"])
    assert list(layout.digests()) == ["one:e2e"]
    assert layout.digests()["one:e2e"] != old


def test_an_archive_leaves_out_what_is_there_already(layout: Layout, tmp_path: Path) -> None:
    layout.add("one:e2e", root(tmp_path, "first"), ["/file"])
    layout.archive({"one:e2e"}, tmp_path / "whole.tar", set())
    there = blobs(tmp_path / "whole.tar")
    assert len(there) == 3  # manifest, config, layer
    layout.add("two:e2e", root(tmp_path, "second"), ["/file"])
    layout.archive({"one:e2e", "two:e2e"}, tmp_path / "rest.tar", there)
    assert blobs(tmp_path / "rest.tar").isdisjoint(there)
    with tarfile.open(tmp_path / "rest.tar") as tar:
        file = tar.extractfile("index.json")
        assert file is not None
        names = [entry["annotations"]["io.containerd.image.name"] for entry in json.load(file)["manifests"]]
    assert names == ["one:e2e", "two:e2e"]


def test_forgetting_an_image_keeps_what_others_share_with_it(layout: Layout, tmp_path: Path) -> None:
    layout.add("one:e2e", root(tmp_path, "shared"), ["/file"])
    layout.add("two:e2e", tmp_path / "root-shared", ["/other"])
    layout.keep_only({"one:e2e"})
    assert list(layout.digests()) == ["one:e2e"]
    layout.archive({"one:e2e"}, tmp_path / "whole.tar", set())
    kept = {"sha256:" + path.name for path in (layout.folder / "blobs" / "sha256").iterdir()}
    assert kept == blobs(tmp_path / "whole.tar")


def test_an_index_entry_without_a_name_was_replaced_and_is_ignored(layout: Layout, tmp_path: Path) -> None:
    layout.add("one:e2e", root(tmp_path, "content"), ["/file"])
    path = layout.folder / "index.json"
    index = json.loads(path.read_text())
    index["manifests"].append({"digest": "sha256:gone", "size": 1})
    path.write_text(json.dumps(index))
    assert list(layout.digests()) == ["one:e2e"]
