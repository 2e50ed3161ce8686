"""`trainmaster status`: shows the state of a run or a job."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Shows the state of a run or a job: its progress, its recoveries, its last failure and, on a cluster, its pods "
        "and what they wait for. It writes nothing.\n\n" + common.WHAT,
        ("trainmaster status runs/my-gpt", "a run on this machine"),
        ("trainmaster status my-gpt -n team-a --watch", "a job on a cluster, until it ends"),
        exit_codes=(
            (0, "The state was shown. With --watch: the run or the job succeeded."),
            (1, "With --watch: it failed, was stopped or was deleted."),
            (2, "There is no such run or job, or the cluster does not answer."),
            (130, "--watch was stopped with Ctrl-C. The run or the job continues."),
        ),
    )
    common.add_what(command)
    command.add_argument("-w", "--watch", action="store_true", help="show changes as they happen, until it ends")
    common.add_plain(command)
    common.add_cluster(command)
    command.set_defaults(func=_status)


def _status(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli import run_or_job

    where = common.where(options)
    out = run_or_job.of(options.what, where)
    if options.watch:
        if out is None:
            from trainmaster_operator.cli.display.watch_job import watch

            return watch(where, options.what, options.plain)
        from trainmaster_operator.cli.display.live_display import choose
        from trainmaster_operator.cli.display.watch_run import watch_run

        return watch_run(out, lambda scene: choose(scene, options.plain))
    from trainmaster_operator.cli.display.show_status import of_job, of_run

    return of_job(where, options.what) if out is None else of_run(out)
