"""The program: see `python -m e2e.kind --help`."""

from __future__ import annotations

import argparse
import shutil
import sys
from contextlib import nullcontext

from e2e.cluster import binaries, images, packages, places, settings
from e2e.cluster.alone import alone
from e2e.cluster.places import BIN
from e2e.cluster.shell import ClusterError, say
from e2e.kind import cluster, docker, engine, kubectl, nodes
from e2e.kind.places import CONTROL_PLANE, KUBECONFIG, NODES, SETTINGS, SHARED, STATE

_HELP = f"""\
A kind cluster of three nodes, with our images in it.

Where docker answers and kind's node image can be pulled, it is a plain `kind create cluster`. Elsewhere the node image
is made from Debian's packages and our build of Kubernetes, and a docker of our own runs it. It needs root.
  KUBECONFIG={KUBECONFIG}
  a folder that all nodes share with this machine: {SHARED}
"""


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    harmless = options.run is status
    try:
        if not harmless:
            packages.require_root()
        with nullcontext() if harmless else alone("kind"):
            code: int | None = options.run(options)
    except ClusterError as error:
        print(f"e2e.kind: {error}", file=sys.stderr)
        return 1
    return code or 0


def up(_: argparse.Namespace) -> None:
    packages.install()
    binaries.build("helm", "kind")
    if not shutil.which("kubectl"):
        binaries.build("kubernetes")
    settings.raise_to(settings.MANY_FILES, SETTINGS)
    chosen = docker.start()
    cluster.up(chosen)
    cluster.deliver(chosen)
    print(f"export KUBECONFIG={KUBECONFIG}\nexport PATH={BIN}:$PATH\n{images.install_command(STATE)}")


def docker_alone(_: argparse.Namespace) -> None:
    packages.install()
    docker.start()


def down(_: argparse.Namespace) -> None:
    if not STATE.exists():
        return
    found = docker.found()
    if found is not None:
        cluster.delete(found)
    engine.stop()
    settings.restore(SETTINGS, places.SETTINGS)
    shutil.rmtree(STATE)


def status(_: argparse.Namespace) -> int:
    found = docker.found()
    for node, state in (cluster.states(found) if found else dict.fromkeys(NODES, "absent")).items():
        print(f"{node:30} {state}")
    ready = KUBECONFIG.exists() and kubectl.ready()
    print(f"{'API':30} {'ready' if ready else 'not ready'}")
    return 0 if ready else 1


def node(options: argparse.Namespace) -> None:
    act = {"lose": nodes.lose, "partition": nodes.partition, "heal": nodes.heal}[options.action]
    act(_require_docker(), options.name)
    say(f"{options.name}: {options.action}")


def api_server(_: argparse.Namespace) -> None:
    nodes.restart_api_server(_require_docker())


def pod(options: argparse.Namespace) -> None:
    nodes.kill_pod(_require_docker(), options.node, options.uid)


def _require_docker() -> docker.Docker:
    found = docker.found()
    if found is None:
        raise ClusterError("there is no cluster: run `python -m e2e.kind up`")
    return found


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m e2e.kind", description=_HELP, formatter_class=formatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("up", help="make the cluster; one of which all nodes run stays as it is")
    command.set_defaults(run=up)

    command = commands.add_parser("docker", help="start docker without a cluster, for the demo in a container")
    command.set_defaults(run=docker_alone)

    command = commands.add_parser("down", help="end everything and leave nothing but the cache")
    command.set_defaults(run=down)

    command = commands.add_parser("status", help="what runs; exit code 0 if the API server is ready")
    command.set_defaults(run=status)

    text = "lose: kill all of it at once; partition: cut its link; heal: undo either"
    command = commands.add_parser("node", help="lose a node, cut it off, heal it", description=text)
    command.add_argument("action", choices=["lose", "partition", "heal"])
    command.add_argument("name", help=f"any but {CONTROL_PLANE}")
    command.set_defaults(run=node)

    command = commands.add_parser("apiserver", help="restart the API server")
    command.add_argument("action", choices=["restart"])
    command.set_defaults(run=api_server)

    command = commands.add_parser("pod", help="kill every process of a pod's containers")
    command.add_argument("action", choices=["kill"])
    command.add_argument("node")
    command.add_argument("uid")
    command.set_defaults(run=pod)
    return parser


if __name__ == "__main__":
    sys.exit(main())
