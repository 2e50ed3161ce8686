"""`make images REGISTRY=... TAG=...` against a registry on loopback, by buildah."""

from __future__ import annotations

import platform
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.cluster import images, registry
from e2e.cluster.alone import alone
from e2e.cluster.places import REPOSITORY

DOCKERFILE = """\
ARG BASE
FROM ${{BASE}} AS {image}
COPY LICENSE /{image}
"""
BOTH = "linux/amd64,linux/arm64"


@pytest.fixture
def dockerfiles(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "dockerfiles"
    folder.mkdir()
    for image in ("operator", "trainer"):
        (folder / f"{image}.Dockerfile").write_text(DOCKERFILE.format(image=image))
    with alone("images"), images.no_strays():
        yield folder


def publish(target: str, tmp_path: Path, dockerfiles: Path, platforms: str, options: str = "--layers=false") -> str:
    """Build and push; return what was said. The values are in values.yaml if both images were pushed."""
    builder = f"buildah --root={tmp_path / 'root'} --runroot={tmp_path / 'run'} --storage-driver=vfs"
    values = tmp_path / "values.yaml"
    words = [f"--registry={target}", "--tag=1.2", f"--builder={builder}", f"--values={values}", "--plain-http"]
    words += [
        f"--platforms={platforms}",
        "--base=scratch",
        f"--dockerfiles={dockerfiles}",
        f"--options=--isolation=chroot {options}",
    ]
    done = subprocess.run(
        [sys.executable, REPOSITORY / "docker" / "publish.py", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == (0 if values.exists() else 2), done.stderr
    return done.stdout + done.stderr


def test_images_of_two_platforms_are_pushed_and_the_values_name_their_digests(
    tmp_path: Path, dockerfiles: Path
) -> None:
    with registry.running(tmp_path / "registry") as found:
        said = publish(f"{found.address}/team", tmp_path, dockerfiles, BOTH)
        values = yaml.safe_load((tmp_path / "values.yaml").read_text())
        for image, key in (("operator", "image"), ("trainer", "trainerImage")):
            index, digest = found.manifest(f"team/{image}", "1.2")
            assert values[key] == {"repository": f"{found.address}/team/{image}", "tag": "1.2", "digest": digest}
            assert f"{found.address}/team/{image}:1.2@{digest}  linux/amd64 linux/arm64\n" in said
            assert sorted(entry["platform"]["architecture"] for entry in index["manifests"]) == ["amd64", "arm64"]


def test_pushing_a_tag_again_replaces_the_images_of_before(tmp_path: Path, dockerfiles: Path) -> None:
    own = f"linux/{ {'x86_64': 'amd64', 'aarch64': 'arm64'}[platform.machine()] }"
    with registry.running(tmp_path / "registry") as found:
        publish(found.address, tmp_path, dockerfiles, BOTH)
        _, before = found.manifest("operator", "1.2")
        publish(found.address, tmp_path, dockerfiles, own)
        index, after = found.manifest("operator", "1.2")
        assert after != before
        assert len(index["manifests"]) == 1


def test_images_that_lack_a_platform_are_not_pushed(tmp_path: Path, dockerfiles: Path) -> None:
    with registry.running(tmp_path / "registry") as found:
        # With its cache buildah takes the files of these images, which are the same for both platforms, for one image.
        said = publish(found.address, tmp_path, dockerfiles, BOTH, "--layers")
        for image in ("operator", "trainer"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                found.manifest(image, "1.2")
    assert "operator:1.2 was built without linux/" in said.splitlines()[-1]
    assert "give BUILD_OPTIONS=--layers=false" in said.splitlines()[-1]


@pytest.mark.trial
def test_the_images_of_the_repository_are_pushed_and_start_what_they_are_for(tmp_path: Path) -> None:
    """From the layers that `python -m e2e.cluster images` has built."""
    file = tmp_path / "values.yaml"
    with registry.running(tmp_path / "registry") as found:
        images.publish(f"{found.address}/team", "1.2", file)
        values = yaml.safe_load(file.read_text())
        for image, key in (("operator", "image"), ("trainer", "trainerImage")):
            _, digest = found.manifest(f"team/{image}", "1.2")
            assert values[key] == {"repository": f"{found.address}/team/{image}", "tag": "1.2", "digest": digest}
            assert found.config(f"team/{image}", "1.2")["User"] == "65532:65532"
        assert "trainmaster_operator" in found.config("team/operator", "1.2")["Entrypoint"][-1]
        assert found.config("team/trainer", "1.2")["Cmd"][-1] == "trainmaster.agent"
