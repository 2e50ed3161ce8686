"""`trainmaster delete`: deletes a job on a cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Deletes a job on a cluster, and with it its pods. Its checkpoints on a volume are kept.",
        ("trainmaster delete my-gpt", "in the namespace of the kubeconfig's context"),
        ("trainmaster delete my-gpt -n team-a", "in the namespace team-a"),
    )
    common.add_name(command)
    common.add_cluster(command)
    command.set_defaults(func=_delete)


def _delete(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli.cluster_jobs.delete_job import delete

    return delete(common.where(options), options.name)
