"""Runs the end-to-end tests in two passes: `python -m e2e --help`.

The first pass has the tests that touch nothing but their own namespace, two at a time. The second one has those marked
`exclusive`, one after another: they move what all others stand on. Both find one installation of the chart. Tests that
are marked `trial` have not been seen to pass on a cluster yet: `--trial` runs them too.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from e2e import access, processor_time
from e2e.cluster.places import REPOSITORY

WORKERS = 2
_FAILED, _NONE_CHOSEN = 1, 5  # exit codes of pytest


def passes(tests: Sequence[str], expression: str, workers: int, *, trial: bool = False) -> list[list[str]]:
    """Return pytest's arguments for each pass over these tests. `trial`: those that are marked so are run too."""
    common = [*(tests or ["e2e"]), "--durations=0", "--durations-min=5", *(["-k", expression] if expression else [])]
    # One test at a time for each worker: the next one goes to the worker that is free first.
    beside = ["-n", str(workers), "--dist", "load", "--maxschedchunk", "1"] if workers > 1 else []
    proven = "" if trial else " and not trial"
    return [[*common, "-m", f"not exclusive{proven}", *beside], [*common, "-m", f"exclusive{proven}"]]


def verdict(codes: Sequence[int]) -> int:
    """Return the exit code of all passes: that of the first that failed. One of them may have no tests."""
    bad = [code for code in codes if code not in (0, _NONE_CHOSEN)]
    return bad[0] if bad else min(codes)


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if options.workers < 1:
        _parser().error(f"--workers is {options.workers}: at least 1 test must run at a time")
    try:
        kube = access.connect(access.chosen())
        with access.installation(kube):
            return _run(passes(options.tests, options.k, options.workers, trial=options.trial))
    except access.AccessError as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 2


def _run(commands: list[list[str]]) -> int:
    """Run the passes; one whose tests fail doesn't hold up the next one, one that was interrupted does."""
    # An interrupt reaches pytest too. It takes down what its tests have built, and its end is waited for.
    signal.signal(signal.SIGINT, lambda *_: None)
    codes, before = [], processor_time.read()
    for arguments in commands:
        environment = {**os.environ, access.INSTALLED: "1"}
        process = subprocess.Popen([sys.executable, "-m", "pytest", *arguments], cwd=REPOSITORY, env=environment)
        codes.append(process.wait())
        if codes[-1] not in (0, _FAILED, _NONE_CHOSEN):
            break
    print(f"e2e: {(processor_time.read() - before).describe()}", flush=True)
    return verdict(codes)


def _parser() -> argparse.ArgumentParser:
    text = "Run the end-to-end tests on the cluster that is up. E2E_CLUSTER: own (default), kind or current."
    parser = argparse.ArgumentParser(prog="python -m e2e", description=text)
    parser.add_argument("tests", nargs="*", metavar="TEST", help="files or test ids (default: all in e2e/)")
    parser.add_argument("--trial", action="store_true", help="also tests that have not been seen to pass yet")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="only tests whose names match, as for pytest")
    parser.add_argument(
        "--workers", type=int, default=WORKERS, metavar="N", help=f"tests that run at a time (default: {WORKERS})"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
