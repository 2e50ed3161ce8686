"""Whatever a run on one machine listens on is on loopback: nobody else in the network reaches anything of it."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import machine_zygote, tied
from tests.e2e import harness
from tests.e2e.harness import small_demo_job
from tests.e2e.live import live
from trainmaster_operator.local import process_tree

pytestmark = pytest.mark.processes

LISTENS = "0A"  # a TCP socket's state in /proc/net
BOUND = "07"  # a UDP socket's that is connected to nobody

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def address(text: str) -> tuple[Address, int]:
    """An address and a port as /proc/net has them: words of four bytes, each in the order of this machine."""
    words, _, port = text.partition(":")
    raw = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    found = ipaddress.ip_address(raw)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found, int(port, 16)


def open_sockets() -> dict[str, tuple[Address, int]]:
    """Where sockets of this machine can be spoken to from elsewhere, by inode."""
    found = {}
    for name, state in (("tcp", LISTENS), ("tcp6", LISTENS), ("udp", BOUND), ("udp6", BOUND)):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == state:
                found[words[9]] = address(words[1])
    return found


def inodes(pid: int) -> set[str]:
    """Of the sockets that a process holds; none of a process that ends meanwhile."""
    held = set()
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(path)
            if target.startswith("socket:["):
                held.add(target[len("socket:[") : -1])
    except OSError:
        pass
    return held


def zygotes() -> list[int]:
    """The process that forks the ranks and stores of all runs, if they share one. What it forked carries its command
    line as well."""
    if harness.zygote is None:
        return []
    wanted = str(harness.zygote).encode()
    alike = []
    for process in process_tree.table().values():
        try:
            if wanted in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0"):
                alike.append(process)
        except OSError:
            continue
    return [min(alike, key=lambda process: process.started).pid]


def listening(command: int) -> list[tuple[Address, int]]:
    """Where the processes of a run listen: those below its command, and those below the zygote."""
    roots = [command, *zygotes()]
    sockets = open_sockets()
    held = {inode for pid in roots for inode in inodes(pid)}
    for process in process_tree.below(roots, process_tree.table()):
        held |= inodes(process.pid)
    return [sockets[inode] for inode in held & sockets.keys()]


def watched_run(folder: Path, faults: Sequence[str] = ()) -> tuple[int, list[tuple[Address, int]]]:
    """(the port of its store, where it listens) of a run of two ranks that is training, once it has recovered from its
    faults."""
    job = small_demo_job(folder, 2, {"dpReplicate": 2}, 100_000)
    with live(job, folder / "out", "stdlib-gpt", faults=faults) as run:
        run.wait(
            lambda status: status.get("phase") == "Running" and len(status.get("recoveries", [])) == len(faults),
            f"it trains, after {len(faults)} recoveries",
        )
        return int(run.status()["roundStore"].rpartition(":")[2]), listening(run.process.pid)


def print_watched_run(folder: str) -> None:
    port, found = watched_run(Path(folder))
    print(json.dumps({"store": port, "found": [(str(ip), port) for ip, port in found]}))


@pytest.mark.parametrize("faults", [[], ["kill:rank=1,step=3"]], ids=["calm", "restarted"])
def test_a_run_listens_on_loopback_alone(faults: list[str], tmp_path: Path) -> None:
    """A restart opens another store, and the ranks listen for each other at other ports."""
    port, found = watched_run(tmp_path, faults)
    assert port in [port for _, port in found], "the store is one of them"
    assert len(found) >= 4, "the control channel, the store, and a server of each agent"
    assert [(str(ip), port) for ip, port in found if not ip.is_loopback] == []


IN_A_NETWORK = """
set -e
ip link set lo up
ip address add 10.9.9.9/32 dev lo
mount --bind "$1" /etc/hosts
exec "$2" -c 'import sys; from tests.e2e import test_listening; test_listening.print_watched_run(sys.argv[1])' "$3"
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="a network namespace needs root and ip")
def test_a_run_listens_on_loopback_alone_where_the_name_of_the_machine_is_its_address_in_the_network(
    tmp_path: Path,
) -> None:
    """As on most machines; on those of containers the name may be that of loopback."""
    if subprocess.run(["unshare", "-mn", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine doesn't let root make a network namespace")
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n10.9.9.9 {socket.gethostname()}\n")
    arguments = [str(hosts), sys.executable, str(tmp_path)]
    process = tied.popen(
        ["unshare", "-mn", "sh", "-c", IN_A_NETWORK, "sh", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parents[2],
        env=machine_zygote.environment(),
    )
    output, _ = process.communicate(timeout=harness.LIMIT_S)
    assert process.returncode == 0, output
    told = json.loads(output.splitlines()[-1])
    assert told["store"] in [port for _, port in told["found"]]
    assert [(ip, port) for ip, port in told["found"] if not ipaddress.ip_address(ip).is_loopback] == []
