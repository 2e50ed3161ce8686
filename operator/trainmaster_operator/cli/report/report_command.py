"""`trainmaster report`: writes a page about a run or a job."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Writes a page about a run or a job, and prints the name of the file. The page needs no network. That of a run "
        "has the curves of loss, throughput and memory; `trainmaster run` writes it too when it ends. That of a job on "
        "a cluster has its recoveries, its last failure, where its time went and its events, and says what could not "
        "be read.\n\n" + common.WHAT,
        ("trainmaster report runs/my-gpt", "writes runs/my-gpt/report.html"),
        ("trainmaster report my-gpt -n team-a --file my-gpt.html", "a job on a cluster"),
        ("trainmaster report my-gpt --prometheus http://localhost:9090", "a job on a cluster, with its curves"),
    )
    common.add_what(command)
    command.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="file to write (default: report.html in the run's folder; for a job on a cluster, "
        "JOB-NAME-report.html in the current folder)",
    )
    command.add_argument(
        "--prometheus",
        metavar="URL",
        help="address of a Prometheus that scrapes the operator, for the curves of a job on a cluster",
    )
    common.add_cluster(command)
    command.set_defaults(func=_report)


def _report(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli import run_or_job

    where = common.where(options)
    out = run_or_job.of(options.what, where)
    if out is not None:
        from trainmaster_operator.cli.report.run_report import report

        return report(out, options.file)
    from trainmaster_operator.cli.report.job_report import report_of_job

    return report_of_job(where, options.what, options.file, options.prometheus)
