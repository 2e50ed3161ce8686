"""A folder of images in the OCI layout: uncompressed layers, each there once however many images share it."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Any

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_INDEX_VERSION = {"schemaVersion": 2}
_NAME = "org.opencontainers.image.ref.name"
_CONTAINERD_NAME = "io.containerd.image.name"


class Layout:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index = folder / "index.json"
        self._blobs = folder / "blobs" / "sha256"

    def digests(self) -> dict[str, str]:
        """The name of each image -> the digest of its manifest."""
        return {entry["annotations"][_NAME]: entry["digest"] for entry in self._entries()}

    def size(self, name: str) -> int:
        return sum(layer["size"] for layer in self._manifest(name)["layers"])

    def add(self, name: str, root: Path, command: list[str]) -> None:
        """Add an image of one layer: the files below `root`."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            tar.add(root, arcname=".", filter=_without_history)
        layer = self._write(buffer.getvalue(), _LAYER)
        config = {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Entrypoint": command},
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        }
        content = {**_INDEX_VERSION, "mediaType": _MANIFEST, "config": self._write_json(config, _CONFIG)}
        manifest = self._write_json({**content, "layers": [layer]}, _MANIFEST)
        manifest["annotations"] = {_NAME: name}
        others = [entry for entry in self._entries() if entry["annotations"][_NAME] != name]
        self._write_index([*others, manifest])

    def keep_only(self, names: set[str]) -> None:
        """Forget other images, and every blob that no image needs any more."""
        self._write_index([entry for entry in self._entries() if entry["annotations"][_NAME] in names])
        needed = {digest for name in self.digests() for digest in self._all_blobs(name)}
        for path in self._blobs.iterdir():
            if f"sha256:{path.name}" not in needed:
                path.unlink()

    def archive(self, names: set[str], out: Path, there: set[str]) -> None:
        """Write a tar file that containerd imports, without the blobs that are `there` already."""
        entries = [entry for entry in self._entries() if entry["annotations"][_NAME] in names]
        for entry in entries:
            entry["annotations"][_CONTAINERD_NAME] = entry["annotations"][_NAME]
        index = {**_INDEX_VERSION, "manifests": entries}
        with tarfile.open(out, "w") as tar:
            for name, content in (("oci-layout", {"imageLayoutVersion": "1.0.0"}), ("index.json", index)):
                data = json.dumps(content).encode()
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            for digest in sorted({d for name in names for d in self._all_blobs(name)} - there):
                tar.add(self._path(digest), arcname=f"blobs/sha256/{self._path(digest).name}")

    def _entries(self) -> list[dict[str, Any]]:
        entries = json.loads(self._index.read_text())["manifests"] if self._index.exists() else []
        return [entry for entry in entries if _NAME in entry.get("annotations", {})]  # the others were replaced

    def _manifest(self, name: str) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads(self._path(self.digests()[name]).read_text())
        return manifest

    def _all_blobs(self, name: str) -> list[str]:
        manifest = self._manifest(name)
        layers = [layer["digest"] for layer in manifest["layers"]]
        return [self.digests()[name], manifest["config"]["digest"], *layers]

    def _path(self, digest: str) -> Path:
        return self._blobs / digest.removeprefix("sha256:")

    def _write(self, data: bytes, kind: str) -> dict[str, Any]:
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._path(digest).write_bytes(data)
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    def _write_json(self, content: dict[str, Any], kind: str) -> dict[str, Any]:
        return self._write(json.dumps(content).encode(), kind)

    def _write_index(self, entries: list[dict[str, Any]]) -> None:
        (self.folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
        self._index.write_text(json.dumps({**_INDEX_VERSION, "manifests": entries}))


def _without_history(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same files give the same image, whoever made them and when."""
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info
