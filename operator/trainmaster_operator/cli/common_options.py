"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser
    from trainmaster_operator.cli.kubeconfig import Where

WHAT = (
    "WHAT is the output folder of a run on this machine (runs/my-gpt), the name of a run in ./runs (my-gpt), or the "
    "name of a job on a cluster. If a name fits both a run and a job, the run is meant: add -n, --kubeconfig or "
    "--context to mean the job."
)


class Completes(Enum):
    """What a shell offers as the value of an argument."""

    FILE = "a file"
    FOLDER = "a folder"
    RUN = "the output folder of a run, or the name of a run in ./runs"
    FAULT = "a fault"


def completes(action: argparse.Action, kind: Completes) -> None:
    """Let shells offer values of this kind."""
    action.completes = kind  # type: ignore[attr-defined]


def completed(action: argparse.Action) -> Completes | Sequence[str]:
    """Return what shells offer as the value of this argument: a kind, or a list of words, which may be empty."""
    found: Any = getattr(action, "completes", None)
    if isinstance(found, Completes):
        return found
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    return Completes.FILE if action.type is Path else ()


def add_job(command: Parser) -> None:
    """Add the file that describes a job."""
    command.add_argument("job", type=Path, metavar="job.yaml", help="the file of the job")


def add_what(command: Parser) -> None:
    """Add the word that names a run or a job. `run_or_job` says which of them it is."""
    action = command.add_argument("what", metavar="WHAT", help="a run or a job; see above")
    completes(action, Completes.RUN)


def add_name(command: Parser) -> None:
    """Add the name of a job on a cluster."""
    command.add_argument("name", metavar="NAME", help="the name of the job")


def add_folder(command: Parser, *names: str, **options: Any) -> None:
    """Add an argument that is a folder."""
    completes(command.add_argument(*names, type=Path, **options), Completes.FOLDER)


def add_plain(command: Parser) -> None:
    """Add the option --plain."""
    command.add_argument(
        "--plain", action="store_true", help="print lines of text, as when the output is not a terminal"
    )


def add_cluster(command: Parser) -> None:
    """Add the options that name a cluster and a namespace."""
    group = command.add_argument_group("which cluster")
    group.add_argument("-n", "--namespace", metavar="NS", help="namespace of the job (default: that of the context)")
    kubeconfig = group.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="kubeconfig file of the cluster (default: the variable KUBECONFIG, or ~/.kube/config)",
    )
    completes(kubeconfig, Completes.FILE)
    group.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: the current context)")


def where(options: argparse.Namespace) -> Where:
    """Return which cluster the options of `add_cluster` name."""
    from trainmaster_operator.cli.kubeconfig import Where

    return Where(options.namespace, options.kubeconfig, options.context)
