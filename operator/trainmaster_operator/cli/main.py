"""The `trainmaster` command. Bad input: a sentence per problem on stderr, exit code 2, nothing left behind."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from trainmaster import __version__
from trainmaster_operator.cli.refusal import EXIT_CODE, Refusal

FAULT_HELP = (
    "break something on purpose, once: kill, stop, exit, raise, corrupt-checkpoint, kill-pod or kill-operator, "
    "for example kill:rank=2,step=20; may be repeated"
)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="trainmaster", description="Distributed training that survives its failures.")
    top.add_argument("--version", action="version", version=f"trainmaster {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a job on this machine, or go on with it")
    run.add_argument("job", type=Path, metavar="job.yaml")
    run.add_argument("--out", type=Path, metavar="DIR", help="the run's output folder (default: runs/<job name>)")
    run.add_argument("--fault", action="append", default=[], metavar="FAULT", help=FAULT_HELP)
    run.add_argument("--port", type=int, default=0, help="of the control channel on 127.0.0.1 (default: a free one)")
    run.add_argument("--plain", action="store_true", help="plain lines, as when the output is no terminal")
    run.add_argument("--fresh", action="store_true", help="throw away what an earlier run left in DIR")

    validate = commands.add_parser("validate", help="say what is wrong with a job")
    validate.add_argument("job", type=Path, metavar="job.yaml")

    demo = commands.add_parser("demo", help="train a small GPT over four ranks, kill one, and lose nothing")
    demo.add_argument("--out", type=Path, metavar="DIR", default=Path("runs/demo"), help="(default: runs/demo)")
    demo.add_argument("--plain", action="store_true", help="plain lines, as when the output is no terminal")

    status = commands.add_parser("status", help="how a run stands")
    status.add_argument("out", type=Path, metavar="DIR", help="the run's output folder")

    report = commands.add_parser("report", help="make a run's report.html again")
    report.add_argument("out", type=Path, metavar="DIR", help="the run's output folder")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
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
        # Whoever read our output has gone (`| head`); stop the interpreter from flushing into the closed pipe.
        sys.stdout = None
        return 141


def _dispatch(options: argparse.Namespace) -> int:
    # Imported here: `trainmaster validate` needs neither an event loop nor a display.
    if options.command == "validate":
        from trainmaster_operator.cli.validate import validate

        return validate(options.job)
    if options.command == "status":
        from trainmaster_operator.cli.status import status

        return status(options.out)
    if options.command == "report":
        from trainmaster_operator.cli.report import report

        return report(options.out)
    if options.command == "demo":
        from trainmaster_operator.cli.demo import demo

        return demo(options.out, plain=options.plain)
    from trainmaster_operator.cli.run import RunOptions, run

    return run(
        RunOptions(
            job=options.job,
            out=options.out,
            faults=tuple(options.fault),
            port=options.port,
            plain=options.plain,
            fresh=options.fresh,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
