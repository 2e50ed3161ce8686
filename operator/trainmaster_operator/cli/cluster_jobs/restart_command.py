"""`trainmaster restart`: restarts a job with its current spec."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Restarts a job on a cluster, so that changes of its spec take effect. All ranks save a checkpoint and stop. "
        "Then the job continues in new pods, with its current spec and the operator's current images. A suspended job "
        "is not restarted: changes take effect when it is resumed.",
        ("trainmaster restart my-gpt", "in the namespace of the kubeconfig's context"),
        ("trainmaster restart my-gpt -n team-a --context prod", "on another cluster of the kubeconfig"),
    )
    common.add_name(command)
    common.add_cluster(command)
    command.set_defaults(func=_restart)


def _restart(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli.cluster_jobs.restart_job import restart

    return restart(common.where(options), options.name)
