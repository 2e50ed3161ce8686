"""The `trainmaster` command. Bad input: a sentence per problem on stderr, exit code 2, nothing left behind."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from trainmaster import stdout
from trainmaster_operator.cli.arguments import parser
from trainmaster_operator.cli.refusal import EXIT_CODE, Refusal


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words:
        parser().print_help()
        return 0
    options = parser().parse_args(words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # ranks may say what a terminal can't show
    try:
        return _dispatch(options)
    except Refusal as refusal:
        for line in refusal.lines:
            sys.stderr.write(f"trainmaster: {line}\n")
        return EXIT_CODE
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return stdout.closed()


def _dispatch(options: argparse.Namespace) -> int:
    # Imported here: `trainmaster validate` needs neither an event loop nor a display.
    if options.command == "migrate":
        from trainmaster_operator.cli.migrate import migrate

        return migrate(options.job)
    if options.command == "validate":
        from trainmaster_operator.cli.kubeconfig import Where
        from trainmaster_operator.cli.validate import validate

        where = Where(options.namespace, options.kubeconfig, options.context)
        return validate(options.job, cluster=where if options.cluster or where.given else None)
    if options.command in ("status", "submit", "watch", "logs", "delete", "restart", "fault", "profile"):
        return _dispatch_to_cluster(options)
    if options.command == "parity":
        from trainmaster_operator.cli.parity import parity

        return parity(options.only, options.json, options.page, options.list)
    if options.command == "export":
        from trainmaster_operator.cli.huggingface import export

        return export(options.checkpoint, options.out, options.file_gb)
    if options.command == "import":
        from trainmaster_operator.cli.huggingface import import_

        return import_(options.folder, options.out)
    if options.command == "tokenize":
        from trainmaster_operator.cli.tokenize import tokenize

        return tokenize(options.source, options.out, options.tokenizer, options.column, options.glob, options.separator)
    if options.command == "plan":
        from trainmaster_operator.cli.plan import PlanOptions, plan

        return plan(
            PlanOptions(
                options.job,
                options.ranks,
                options.memory,
                options.tflops,
                options.bandwidth,
                options.top,
                options.measure,
                options.json,
            )
        )
    if options.command == "report":
        from trainmaster_operator.cli.report import report

        return report(options.out)
    if options.command == "prove":
        from trainmaster_operator.cli.prove import ProveOptions, prove

        return prove(
            ProveOptions(options.job, options.out, options.kills, options.seed, options.tolerance, options.plain)
        )
    if options.command == "demo":
        from trainmaster_operator.cli.demo import demo

        return demo(options.out, plain=options.plain, port=options.port)
    from trainmaster_operator.cli.run import RunOptions, run

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


def _dispatch_to_cluster(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli.kubeconfig import Where

    where = Where(options.namespace, options.kubeconfig, options.context)
    if options.command == "status":
        from trainmaster_operator.cli.status import status

        return status(options.what, where)
    if options.command == "submit":
        from trainmaster_operator.cli.submit import submit

        return submit(where, options.job, options.watch, options.plain)
    if options.command == "watch":
        from trainmaster_operator.cli.watch import watch

        return watch(where, options.name, options.plain)
    if options.command == "logs":
        from trainmaster_operator.cli.kubeconfig import is_folder

        rank = None if options.all else options.rank or 0
        if is_folder(options.what, where):
            from trainmaster_operator.cli.local_logs import of_run

            return of_run(Path(options.what), rank, options.follow)
        from trainmaster_operator.cli.logs import logs

        return logs(where, options.what, rank, options.follow)
    if options.command == "fault":
        from trainmaster_operator.cli.fault import fault

        return fault(where, options.name, options.faults)
    if options.command == "profile":
        from trainmaster_operator.cli.profile import profile

        return profile(options.what, options.steps, where)
    if options.command == "restart":
        from trainmaster_operator.cli.restart import restart

        return restart(where, options.name)
    from trainmaster_operator.cli.submit import delete

    return delete(where, options.name)


if __name__ == "__main__":
    sys.exit(main())
