"""A registry on loopback, from Debian's package, which is not installed: that would start one for the whole machine."""

from __future__ import annotations

import json
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from e2e.cluster.alone import alone
from e2e.cluster.daemons import Daemon
from e2e.cluster.places import CACHE
from e2e.cluster.shell import run, until, write

_UNPACKED = CACHE / "registry"
PROGRAM = _UNPACKED / "usr/bin/docker-registry"
_MANIFEST = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json"


class Registry:
    def __init__(self, address: str) -> None:
        self.address = address

    def manifest(self, image: str, reference: str) -> tuple[dict[str, Any], str]:
        """Return an image's manifest, or the index of several, and its digest."""
        request = urllib.request.Request(
            f"http://{self.address}/v2/{image}/manifests/{reference}", headers={"Accept": _MANIFEST}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read()), answer.headers["Docker-Content-Digest"]

    def config(self, image: str, reference: str) -> dict[str, Any]:
        """Return how containers of the first platform's image are run."""
        index, _ = self.manifest(image, reference)
        manifest, _ = self.manifest(image, index["manifests"][0]["digest"])
        blob = f"http://{self.address}/v2/{image}/blobs/{manifest['config']['digest']}"
        with urllib.request.urlopen(blob, timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())["config"]
            return found

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/v2/", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def running(folder: Path, host: str = "127.0.0.1") -> Iterator[Registry]:
    """Give a registry whose images lie in `folder`, until the end of the block."""
    unpack()
    with closing(socket.socket()) as free:
        free.bind((host, 0))
        address = f"{host}:{free.getsockname()[1]}"
    daemon = Daemon("registry", folder)
    settings = write(folder / "registry.yml", settings_for(address, folder / "images"))
    daemon.start([str(PROGRAM), "serve", settings])
    registry = Registry(address)
    try:
        until(lambda: daemon.pid is None or registry.answers(), 30, f"the registry doesn't answer (see {daemon.log})")
        daemon.require()
        yield registry
    finally:
        daemon.stop()


def settings_for(address: str, folder: Path) -> str:
    """Return the registry's file of settings. JSON is YAML."""
    settings = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder)}},
        "http": {"addr": address},
    }
    return json.dumps(settings)


def unpack() -> None:
    """Bring Debian's program into the cache."""
    with alone("registry"):
        if PROGRAM.exists():
            return
        run("apt-get", "update", "-qq", check=False)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            run("apt-get", "download", "-qq", "docker-registry", cwd=Path(scratch))
            (package,) = Path(scratch).glob("*.deb")
            run("dpkg-deb", "--extract", package, Path(scratch, "registry"))
            Path(scratch, "registry").rename(_UNPACKED)
