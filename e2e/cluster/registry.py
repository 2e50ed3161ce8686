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

from e2e.cluster.daemons import Daemon
from e2e.cluster.places import CACHE
from e2e.cluster.shell import run, until, write

_PROGRAMS = CACHE / "registry"
_MANIFEST = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json"


class Registry:
    def __init__(self, address: str) -> None:
        self.address = address

    def manifest(self, image: str, reference: str) -> tuple[dict[str, object], str]:
        """Return an image's manifest, or the index of several, and its digest."""
        request = urllib.request.Request(
            f"http://{self.address}/v2/{image}/manifests/{reference}", headers={"Accept": _MANIFEST}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read()), answer.headers["Docker-Content-Digest"]

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/v2/", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def running(folder: Path, host: str = "127.0.0.1") -> Iterator[Registry]:
    """Give a registry whose images lie in `folder`, until the end of the block."""
    _unpack()
    with closing(socket.socket()) as free:
        free.bind((host, 0))
        address = f"{host}:{free.getsockname()[1]}"
    settings = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
        "http": {"addr": address},
    }
    daemon = Daemon("registry", folder)
    daemon.start(
        [str(_PROGRAMS / "usr/bin/docker-registry"), "serve", write(folder / "registry.yml", json.dumps(settings))]
    )
    registry = Registry(address)
    try:
        until(lambda: daemon.pid is None or registry.answers(), 30, f"the registry doesn't answer (see {daemon.log})")
        daemon.require()
        yield registry
    finally:
        daemon.stop()


def _unpack() -> None:
    if (_PROGRAMS / "usr/bin/docker-registry").exists():
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    run("apt-get", "update", "-qq", check=False)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        run("apt-get", "download", "-qq", "docker-registry", cwd=Path(scratch))
        (package,) = Path(scratch).glob("*.deb")
        run("dpkg-deb", "--extract", package, Path(scratch, "registry"))
        Path(scratch, "registry").rename(_PROGRAMS)
