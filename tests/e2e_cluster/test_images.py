"""How the images of the end-to-end cluster are built: which commands run, and in which order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from e2e.cluster import images
from tests.chart.rendering import argument, operator_pod, render


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands that would run. None does, and nothing lies anywhere but in a folder of the test."""
    found: list[list[str]] = []

    def note(*argv: str | Path, **_: object) -> str:
        found.append([str(word) for word in argv])
        return ""

    monkeypatch.setattr(images, "run", note)
    monkeypatch.setattr(images, "works", lambda *argv, **_: note(*argv) == "")
    monkeypatch.setattr(images, "CACHE", tmp_path)
    monkeypatch.setattr("e2e.cluster.alone.CACHE", tmp_path)
    monkeypatch.setattr(images, "_STORE", tmp_path / "buildah")
    monkeypatch.setattr(images, "_STRAY", ())
    layout = SimpleNamespace(folder=tmp_path / "layout", keep_only=lambda names: None, digests=dict)
    monkeypatch.setattr(images, "LAYOUT", layout)
    monkeypatch.setattr(images.python_base, "folder", lambda: tmp_path / "base")
    monkeypatch.setattr(images.wheels, "folder", lambda _: tmp_path / "wheels" / "key")
    monkeypatch.setattr(images.wheels, "requirement", lambda _: "torch")
    return found


def test_the_command_that_is_printed_installs_the_images_that_nodes_have(tmp_path: Path) -> None:
    """Without these values, a chart would name images that no node can pull."""
    words = images.install_command(tmp_path).split()
    assert words[:3] == ["helm", "install", "trainmaster"]
    objects = render(yaml.safe_load(Path(words[words.index("--values") + 1]).read_text()))
    assert operator_pod(objects)["containers"][0]["image"] == images.OPERATOR
    assert argument(objects, "trainer-image") == images.TRAINER


def buildah(commands: list[list[str]]) -> list[str]:
    """What buildah is asked for, in order."""
    return [argv[len(images._BUILDAH)] for argv in commands if argv[0] == "buildah"]


def test_what_a_build_that_was_ended_early_left_is_removed_before_the_next_one(commands: list[list[str]]) -> None:
    images.make()
    assert buildah(commands).index("rm") < buildah(commands).index("bud")
    assert [*images._BUILDAH, "rm", "--all"] in commands
    assert commands[-1] == ["umount", str(images._STORE / "root" / "overlay")]


def test_builds_get_the_settings_of_pip_that_this_machine_goes_by(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A variable wins over a file, and `pip config list` names it first."""
    listed = (
        ":env:.find-links='/opt/wheels'\n:env:.index-url='https://variable/simple'\n"
        "global.cert='/etc/ssl/all.crt'\nglobal.index-url='https://file/simple'\ninstall.index-url='https://file/simple'\n"
    )
    monkeypatch.setattr(images, "run", lambda *_, **__: listed)
    monkeypatch.setattr(images, "CACHE", tmp_path)
    assert images._pip_settings().read_text().splitlines() == [
        "[global]",
        "cert = /etc/ssl/all.crt",
        "index-url = https://variable/simple",
    ]
