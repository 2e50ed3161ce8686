"""A docker of our own, where there is none: a daemon that nobody else's docker, network or disk has a part in.

It runs in namespaces of its own, so that its bridges and firewall rules are nobody else's, and end with it; a link
leads there for the API server's port. Its programs are taken out of Debian's packages, which are not installed: that
would start a daemon for the whole machine. Images stay in the cache; all else goes when it stops.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.control_plane import allow_many_files
from e2e.cluster.daemons import Daemon
from e2e.cluster.network import exists
from e2e.cluster.places import REPOSITORY
from e2e.cluster.shell import run, say, until, works, write
from e2e.kind.places import BUILT, CABLE, CGROUP, DOCKER_IP, HOST_IP, PREFIX, STATE

_PROGRAMS = BUILT / "docker"
_DATA = BUILT / "docker-data"
_SOCKET = STATE / "docker.sock"
_DAEMON = Daemon("docker", STATE)
_MADE = STATE / "made-folders.json"
_INIT = _PROGRAMS / "usr/bin/tini-static"  # the first process of a container that is run with --init
_RUNC = Path(__file__).with_name("runc-without-sys-resource")
_SYS_RESOURCE = 24  # the capability's number


def environment() -> dict[str, str]:
    """With it `docker`, and whoever runs `docker`, reaches this one."""
    path = f"{_PROGRAMS / 'usr/bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "DOCKER_HOST": f"unix://{_SOCKET}", "DOCKER_CONTEXT": ""}


def running() -> bool:
    return _DAEMON.pid is not None


def in_its_network() -> list[str]:
    """Return the words before a command that run it where the ports that containers publish are."""
    return ["nsenter", f"--target={_DAEMON.pid}", "--net"]


def start() -> None:
    if running():
        return
    stop()  # what a daemon that was killed left behind
    _unpack()
    _make_folder(Path("/lib/modules"))  # a node's container has it mounted; docker would make it and leave it
    write(STATE / "docker.json", json.dumps(_settings(), indent=1))
    allow_many_files()
    namespaces = ("--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc")
    command = ["unshare", *namespaces, sys.executable, "-m", "e2e.kind.engine"]
    _DAEMON.start(command, child=True, cwd=REPOSITORY)
    _DAEMON.require()
    _connect()
    until(lambda: not running() or _answers(), 60, f"dockerd doesn't answer (see {_DAEMON.log})")
    _DAEMON.require()
    say("docker ready")


def stop() -> None:
    """End it, and with it every container, network and rule; containers' disks go too, if some were left."""
    _DAEMON.stop()
    if exists(CABLE):
        run("ip", "link", "delete", CABLE)
    cgroups.remove(cluster=CGROUP)
    if any((_DATA / "containers").glob("*")):
        shutil.rmtree(_DATA)  # nothing else tells their layers from the images'
    _SOCKET.unlink(missing_ok=True)
    for folder in json.loads(_MADE.read_text()) if _MADE.exists() else []:
        with contextlib.suppress(OSError):  # somebody else uses it by now
            os.rmdir(folder)
    _MADE.unlink(missing_ok=True)


def main() -> int:
    """The first process inside: it ends when dockerd does, and everything with it."""
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    run("ip", "link", "set", "lo", "up")
    until(lambda: works("ip", "link", "show", "eth0"), 30, "the link to the machine never came")
    run("ip", "address", "add", f"{DOCKER_IP}/{PREFIX}", "dev", "eth0")
    run("ip", "link", "set", "eth0", "up")
    threading.Thread(target=_know_no_names, daemon=True).start()
    path = f"{_PROGRAMS / 'usr/sbin'}:{os.environ['PATH']}"
    daemon = subprocess.Popen(
        ["dockerd", "--config-file", STATE / "docker.json"], env={**os.environ, "PATH": path}, start_new_session=True
    )
    signal.signal(signal.SIGTERM, lambda *_: daemon.terminate())
    while True:  # as any first process: adopted orphans are reaped
        pid, status = os.wait()
        if pid == daemon.pid:
            return os.waitstatus_to_exitcode(status)


def _know_no_names() -> None:
    """Answer every question of a name: there is none. Without an answer each would take 20 s to be given up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((DOCKER_IP, 53))
        while True:
            query, sender = server.recvfrom(512)
            if len(query) > 12:
                server.sendto(no_such_name(query), sender)


def no_such_name(query: bytes) -> bytes:
    """The answer NXDOMAIN to a DNS query of one question."""
    question = query[12 : query.index(0, 12) + 5]
    return query[:2] + b"\x81\x83" + b"\0\1" + bytes(6) + question


def _settings() -> dict[str, object]:
    settings: dict[str, object] = {
        "data-root": str(_DATA),
        "exec-root": "/run/docker",
        "pidfile": "/run/docker.pid",
        "deprecated-key-path": str(STATE / "docker-key.json"),  # in /etc by default
        "hosts": [f"unix://{_SOCKET}"],
        "storage-driver": "overlay2",
        "init-path": str(_INIT),
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "cgroup-parent": f"/{CGROUP}",
        "dns": [DOCKER_IP],
    }
    if not _may_raise_limits():
        settings |= {"runtimes": {_RUNC.name: {"path": str(_RUNC)}}, "default-runtime": _RUNC.name}
    return settings


def _may_raise_limits() -> bool:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return bool(int(status["CapEff"], 16) >> _SYS_RESOURCE & 1)


def _unpack() -> None:
    if _INIT.exists():
        return
    say("fetching Debian's docker")
    BUILT.mkdir(parents=True, exist_ok=True)
    run("apt-get", "update", "-qq", check=False)
    with tempfile.TemporaryDirectory(dir=BUILT) as folder:
        run("apt-get", "download", "-qq", "docker.io", "tini", cwd=Path(folder))
        for package in Path(folder).glob("*.deb"):
            run("dpkg-deb", "--extract", package, Path(folder, "docker"))
        shutil.rmtree(_PROGRAMS, ignore_errors=True)  # of a time before tini
        Path(folder, "docker").rename(_PROGRAMS)


def _connect() -> None:
    run("ip", "link", "add", CABLE, "type", "veth", "peer", "name", "eth0", "netns", str(_DAEMON.pid))
    run("ip", "address", "add", f"{HOST_IP}/{PREFIX}", "dev", CABLE)
    run("ip", "link", "set", CABLE, "up")


def _answers() -> bool:
    return works("docker", "info", env=environment())


def _make_folder(path: Path) -> None:
    if not path.exists():
        write(_MADE, json.dumps([str(path)]))
        path.mkdir()


if __name__ == "__main__":
    sys.exit(main())
