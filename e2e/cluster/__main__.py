"""The program: see `python -m e2e.cluster --help`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

from e2e.cluster import binaries, control_plane, images, kwok, network, nodes, packages
from e2e.cluster.alone import alone
from e2e.cluster.nodes import Node
from e2e.cluster.places import AUDIT_LOG, BIN, CACHE, KUBECONFIG, MAX_NODES, STATE
from e2e.cluster.shell import ClusterError, say

_HELP = f"""\
A real Kubernetes of several nodes on this machine, without a registry.

It needs root on Debian 12, Go 1.26 or newer, and the package registries (Debian, Go modules, Python). The first time
takes about fifteen minutes; what was built then is kept in {CACHE}.
  KUBECONFIG={KUBECONFIG}
  kubectl, helm and the rest: {BIN}
  the API server's audit log: {AUDIT_LOG}
"""
_DNS = Path(__file__).with_name("dns.yaml")


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    harmless = options.run in (status, make_binaries)
    try:
        if not harmless:
            packages.require_root()
        with nullcontext() if harmless else alone():
            code: int | None = options.run(options)
    except ClusterError as error:
        print(f"e2e.cluster: {error}", file=sys.stderr)
        return 1
    return code or 0


def up(options: argparse.Namespace) -> None:
    if not 1 <= options.nodes <= MAX_NODES:
        raise ClusterError(f"--nodes is {options.nodes}: a cluster has 1 to {MAX_NODES} nodes")
    packages.install()
    make_binaries(options)
    images.make_system()
    images.deliver()
    network.up()
    control_plane.up()
    nodes.up(options.nodes)
    _serve_names()
    print(f"export KUBECONFIG={KUBECONFIG}\nexport PATH={BIN}:$PATH\n{images.install_command(STATE)}")


def down(options: argparse.Namespace) -> None:
    if not STATE.exists():
        return
    if control_plane.ready():
        kwok.down()
    kwok.KWOK.stop()
    nodes.down()
    control_plane.down()
    network.down()
    if not options.keep:
        shutil.rmtree(STATE)


def status(options: argparse.Namespace) -> int:
    processes = {daemon.name: daemon.pid for daemon in (*control_plane.ALL, kwok.KWOK)}
    report = {
        "processes": processes,
        "nodes": {node.name: node.state for node in nodes.known()},
        "ready": control_plane.ready() if processes["api-server"] else False,
    }
    if options.json:
        print(json.dumps(report))
    else:
        for name, pid in processes.items():
            print(f"{name:20} {f'process {pid}' if pid else 'not running'}")
        for node in nodes.known():
            print(f"{node.name:20} {node.state}")
        print(f"{'API':20} {'ready' if report['ready'] else 'not ready'}")
    return 0 if report["ready"] else 1


def make_binaries(_: argparse.Namespace) -> None:
    binaries.build("kubernetes", "helm")


def make_images(options: argparse.Namespace) -> None:
    packages.install()
    images.make()
    if nodes.known() or options.template:
        images.deliver()


def make_other_torch(options: argparse.Namespace) -> None:
    _require_cluster()
    images.make_other_torch(options.wheel)
    images.deliver()


def node(options: argparse.Namespace) -> None:
    _require_cluster()
    if options.action == "add":
        if options.number is not None:
            raise ClusterError("`node add` takes no number: it makes the first one that is missing")
        added = nodes.add()
        images.deliver()
        say(f"{added.name} ready")
        return
    if options.number is None:
        raise ClusterError(f"which node? give its number, as in `node {options.action} 2`")
    chosen = Node(options.number)
    if options.action == "lose":
        chosen.lose()
    elif options.action == "partition":
        chosen.partition()
    elif options.action == "remove":
        chosen.remove()
    else:
        heal(chosen)
    say(f"{chosen.name} is {chosen.state}")


def heal(chosen: Node) -> None:
    if chosen.state == "absent":
        raise ClusterError(f"there is no {chosen.name}: `node add` makes one more")
    chosen.up()
    if control_plane.ready():
        chosen.wait_ready()
        images.deliver()


def api_server(options: argparse.Namespace) -> None:
    _require_cluster()
    if options.action in ("stop", "restart"):
        control_plane.stop_api_server()
    if options.action in ("start", "restart"):
        control_plane.start_api_server()


def fake_nodes(options: argparse.Namespace) -> None:
    _require_cluster()
    if options.action == "up":
        kwok.up(options.count)
    else:
        kwok.down()


def _serve_names() -> None:
    control_plane.kubectl("apply", f"--filename={_DNS}")
    control_plane.kubectl("--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout=60s")
    say("DNS ready")


def _require_cluster() -> None:
    if not KUBECONFIG.exists():
        raise ClusterError("there is no cluster: run `python -m e2e.cluster up`")


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=_HELP, formatter_class=formatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("up", help="start what doesn't run; a cluster that is up stays as it is")
    command.add_argument("--nodes", type=int, default=3, help="at least so many (default: 3)")
    command.set_defaults(run=up)

    command = commands.add_parser("down", help="end everything and leave nothing but the cache")
    command.add_argument("--keep", action="store_true", help="keep the cluster's contents for the next `up`")
    command.set_defaults(run=down)

    command = commands.add_parser("status", help="what runs; exit code 0 if the API server is ready")
    command.add_argument("--json", action="store_true")
    command.set_defaults(run=status)

    command = commands.add_parser(
        "images", help="build the images from docker/ and bring them to all nodes that are up"
    )
    command.add_argument(
        "--template", action="store_true", help="unpack them for nodes of the next `up` too, which then starts sooner"
    )
    command.set_defaults(run=make_images)

    command = commands.add_parser(
        "other-torch", help="build the trainer's image with another torch, for e2e/test_two_torches.py"
    )
    command.add_argument("wheel", type=Path, help="a wheel of torch for the image's Python and for CPUs alone")
    command.set_defaults(run=make_other_torch)

    command = commands.add_parser("binaries", help="build the programs that `up` needs, and start nothing")
    command.set_defaults(run=make_binaries)

    text = "lose: kill all of it at once; partition: take its link down; heal: undo either; add, remove: for good"
    command = commands.add_parser(
        "node", help="lose a node, cut it off, heal it; add one, remove one", description=text
    )
    command.add_argument("action", choices=["lose", "heal", "partition", "add", "remove"])
    command.add_argument("number", type=int, nargs="?")
    command.set_defaults(run=node)

    command = commands.add_parser("apiserver", help="stop, start or restart the API server")
    command.add_argument("action", choices=["stop", "start", "restart"])
    command.set_defaults(run=api_server)

    command = commands.add_parser("kwok", help="nodes that only pretend, for benchmarks")
    command.add_argument("action", choices=["up", "down"])
    command.add_argument("count", type=int, nargs="?", default=100)
    command.set_defaults(run=fake_nodes)
    return parser


if __name__ == "__main__":
    sys.exit(main())
