"""`trainmaster fault`: breaks something in a job on a cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common
from trainmaster_operator.cli.fault_injection import fault_kinds

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Breaks something in a job on a cluster on purpose, to see how the job recovers. A fault with a step happens "
        "in that step, a fault without one now. You need the right to pods/exec; for kill-pod, the right to delete "
        "pods. For a run on this machine, use trainmaster run --fault.",
        ("trainmaster fault my-gpt kill:rank=2", "kills rank 2 now"),
        (
            "trainmaster fault my-gpt slow:rank=1,step=500,seconds=0.2 -n team-a",
            "from step 500 on, rank 1 needs 0.2 s more in each of 10 steps",
        ),
    )
    common.add_name(command)
    faults = command.add_argument(
        "faults", nargs="+", metavar="FAULT", help="what to break, for example kill:rank=2; the kinds are listed below"
    )
    common.completes(faults, common.Completes.FAULT)
    common.add_cluster(command)
    command.table = fault_kinds.of_a_job
    command.set_defaults(func=_fault)


def _fault(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli.fault_injection.inject_fault import fault

    return fault(common.where(options), options.name, options.faults)
