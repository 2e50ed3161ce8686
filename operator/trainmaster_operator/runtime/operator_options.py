"""The command line of the operator on a cluster."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

from trainmaster_operator.manifests.pod_defaults import PodDefaults
from trainmaster_operator.manifests.security import USER
from trainmaster_operator.runtime.observability.job_metrics_page import FINISHED_S

ANY = "any"  # For users and groups: the cluster or the image chooses.


def _lease_seconds(text: str) -> int:
    seconds = int(text)  # A Lease has whole seconds.
    if not 2 <= seconds <= 600:
        raise argparse.ArgumentTypeError(f"2 to 600 are expected, not {seconds}")
    return seconds


def _id(text: str) -> int | None:
    """Return a user or group id of Linux; None if the cluster or the image chooses it."""
    if text == ANY:
        return None
    number = int(text)
    if not 0 < number < 2**31:
        raise argparse.ArgumentTypeError(f"1 to {2**31 - 1} or {ANY} is expected, not {text}")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 30 * 86400:
        raise argparse.ArgumentTypeError(f"0 to 2592000 (30 days) are expected, not {text}")
    return seconds


def parser(description: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line. `description`: the text of the help before the options."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--namespace-of-operator", required=True, metavar="NS", help="namespace of the operator's Lease and Secret")
    add(
        "--identity",
        default=socket.gethostname(),
        help="name of this replica, unique among the replicas: the pod's name",
    )
    add("--pod-uid", default="", metavar="UID", help="uid of the pod whose name is the identity")
    add(
        "--address",
        default="127.0.0.1",
        metavar="IP",
        help="address of this replica, which other replicas give to agents",
    )
    add(
        "--control-port",
        type=int,
        default=8443,
        metavar="PORT",
        help="port of the control channel, for agents (default: 8443)",
    )
    add("--health-port", type=int, default=8080, metavar="PORT", help="port for probes (default: 8080)")
    add(
        "--metrics-port", type=int, default=8444, metavar="PORT", help="port of the metrics, over HTTPS (default: 8444)"
    )
    add(
        "--plain-metrics",
        action="store_true",
        help="serve metrics without authentication, over HTTP, on the port for probes",
    )
    add(
        "--operator-url",
        required=True,
        metavar="URL",
        help="URL of the operator's Service, at which agents reach it",
    )
    add(
        "--trainer-image",
        default=PodDefaults.trainer_image,
        metavar="IMAGE",
        help="image of the first container of a job that names no image",
    )
    add(
        "--agent-image",
        default=PodDefaults.agent_image,
        metavar="IMAGE",
        help="image that copies the agent into pods with users' images",
    )
    for name, words in (
        ("user", "user ID of the containers in job pods that use Trainmaster's images"),
        ("group", "group ID of these containers"),
        ("fs-group", "group that owns the volumes of these pods"),
    ):
        help = f"{words}; {ANY}: chosen by the cluster or the image (default: {USER})"
        add(f"--job-{name}", type=_id, default=USER, metavar="ID", help=help)
    add(
        "--restrict-user-images",
        action="store_true",
        help="give containers with users' images what the Pod Security Standard restricted asks for",
    )
    add("--watch-namespace", metavar="NS", help="watch only the jobs of this namespace (default: all namespaces)")
    add("--kubeconfig", metavar="FILE", help="kubeconfig file (default: the pod's own service account)")
    add(
        "--tls-dir",
        type=Path,
        metavar="DIR",
        help="directory with tls.crt, tls.key and ca.crt, which other software renews",
    )
    add(
        "--lease-seconds",
        type=_lease_seconds,
        default=15,
        metavar="S",
        help="number of seconds after which a leader that no longer renews its lease is replaced (default: 15)",
    )
    add(
        "--taint-nodes",
        action="store_true",
        help="taint nodes on which jobs failed; this needs the rights to get, list and patch nodes",
    )
    add(
        "--list-nodes",
        action="store_true",
        help="notice new nodes for waiting jobs; this needs the right to list nodes",
    )
    add("--no-job-metrics", dest="job_metrics", action="store_false", help="do not export metrics of single jobs")
    add(
        "--finished-metrics-seconds",
        type=_seconds,
        default=FINISHED_S,
        metavar="S",
        help="seconds after its end for which a job has metrics of its own (default: 21600)",
    )
    return made
