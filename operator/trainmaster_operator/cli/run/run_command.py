"""`trainmaster run`: runs a job on this machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common
from trainmaster_operator.cli.fault_injection import fault_kinds

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser

EXIT_CODES = (
    (0, "The job succeeded."),
    (1, "The job failed."),
    (2, "The job was refused, and nothing was started."),
    (3, "The job succeeded, but a fault of --fault never happened."),
    (130, "The run was stopped. The same command continues it."),
)


def declare(command: Parser) -> None:
    command.describe(
        "Runs a job on this machine. If DIR holds an earlier run of the job, that run continues from its last "
        "checkpoint. The terminal shows the progress and what rank 0 prints. DIR gets logs/ with the output of all "
        "ranks (`trainmaster logs DIR` shows it), checkpoints/, metrics.jsonl, status.yaml and report.html. Ctrl-C "
        "stops the run after the built-in trainer has saved a checkpoint; a script gets SIGTERM and saves only if it "
        "does so itself. A second Ctrl-C ends the run at once.",
        ("trainmaster run job.yaml", "writes to runs/JOB-NAME, and continues what is there"),
        (
            "trainmaster run job.yaml --fresh --fault kill:rank=1,step=30",
            "starts again from the first step, and kills rank 1 in step 30",
        ),
        exit_codes=EXIT_CODES,
    )
    common.add_job(command)
    common.add_folder(command, "--out", metavar="DIR", help="output folder of the run (default: runs/JOB-NAME)")
    fault = command.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="FAULT",
        help="break something on purpose, once, for example kill:rank=2,step=20; the kinds are listed below; can be "
        "repeated",
    )
    common.completes(fault, common.Completes.FAULT)
    command.add_argument(
        "--port", type=int, default=0, help="port of the control channel on 127.0.0.1 (default: any free port)"
    )
    common.add_plain(command)
    command.add_argument("--quiet", action="store_true", help="do not show what rank 0 prints")
    command.add_argument(
        "--fresh",
        action="store_true",
        help="delete what an earlier run of the job left in DIR, and start from the first step",
    )
    command.add_argument(
        "--digests", action="store_true", help="write digests of all states after each step; this makes steps slow"
    )
    command.add_argument(
        "--pods-as-nodes",
        action="store_true",
        help="count LOCAL_RANK from 0 in each pod, as on a cluster, where each pod is a node (default: from 0 over all "
        "pods, as torchrun does on one machine)",
    )
    command.table = fault_kinds.of_a_run
    command.set_defaults(func=_run)


def _run(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli.run.run_job import RunOptions, run

    return run(
        RunOptions(
            job=options.job,
            out=options.out,
            faults=tuple(options.fault),
            port=options.port,
            plain=options.plain,
            quiet=options.quiet,
            fresh=options.fresh,
            digests=options.digests,
            pods_as_nodes=options.pods_as_nodes,
        )
    )
