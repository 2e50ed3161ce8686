"""Run the tests that a change can reach: `python -m tests.suite.reach [--base REV] [-- pytest's arguments]`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.suite import listing
from tests.suite.durations import COMMITTED, BadDurations, load
from tests.suite.reach import recordfile, report
from tests.suite.reach.checkout import Checkout, GitError
from tests.suite.reach.choice import NEIGHBOUR, Choice, Sight, choose, without_farthest
from tests.suite.reach.collection import DAILY
from tests.suite.reach.recordfile import BadRecord
from tests.suite.reach.sight import gather
from tests.suite.sources import parse

PYTEST = (sys.executable, "-m", "pytest", "-p", "tests.suite.reach.selection")

RELEASES = COMMITTED.with_name("releases.txt")

NO_TESTS = 5
"""pytest's exit code if no test was left."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Choose and run. Return pytest's exit code; 0 if nothing can be reached, 2 for bad input."""
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    ours, passed_on = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    options = _parser().parse_args(ours)
    checkout = Checkout()
    try:
        base = checkout.resolve(options.base) if options.base else checkout.merge_base()
        sight = gather(checkout, base, options.record)
        known = load(COMMITTED).without(listing.matcher(listing.parse(RELEASES.read_text())))
    except (BadRecord, BadDurations) as error:
        print(error, file=sys.stderr)
        return 2
    except GitError as error:
        print(_refusal(options.base) if options.base else f"{error}; --base REV names a revision", file=sys.stderr)
        return 2
    choice = choose(sight)
    counts = report.Counts(choice, known, {name: u.tests for name, u in sight.record.units.items()}, _defined(sight))
    if options.json:
        print(json.dumps(report.as_json(choice, counts, base), indent=1))
    elif choice.rows:
        print(report.render(choice, counts, base[:10]), flush=True)
    if options.likely:
        choice = without_farthest(choice)
    if not choice.units:
        if not options.json:
            what = "What changed can reach no test." if choice.rows else "Nothing has changed."
            print(f"{what} `make test` runs all tests.")
        return 0
    return 0 if options.dry_run or options.json else run(choice, [*(["-x"] if options.x else []), *passed_on])


def run(choice: Choice, words: Sequence[str]) -> int:
    """Run what was chosen, with further words for pytest. Return its exit code, 0 if it found nothing to run."""
    left_out = [unit for file in choice.files for unit in choice.left_out(file)]
    nearness = {unit: hit.nearness for unit, hit in choice.units.items()}
    files = [] if len(choice.files) == len(choice.all_units) else choice.files  # all: pytest finds them itself
    with TemporaryDirectory(prefix="reach-") as folder:
        said = Path(folder, "choice.json")
        said.write_text(json.dumps({"leave_out": left_out, "nearness": nearness, "about": NEIGHBOUR}))
        # One word: pytest takes a path that stands alone for a place of tests, and looks for its settings near that.
        chosen = f"--reach-choice={said}"
        command = [*PYTEST, chosen, "-n", str(report.WORKERS), *DAILY, *words, *files]
        code = subprocess.run(command, cwd=Checkout().root, check=False).returncode
    if code == NO_TESTS:
        print("None of the tests that the change can reach is left to run here: `make test-all` runs them.")
        return 0
    return code


def _refusal(revision: str) -> str:
    return f"--base {revision!r} is no commit of this repository; a commit, a branch or a tag would be right"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.suite.reach",
        description="Run the tests that a change can reach, the nearest first. The change is what differs between a "
        "revision and the working tree, new files included. It leaves out only tests of which it is sure.",
        epilog="Words after -- go to pytest.",
    )
    parser.add_argument("--base", metavar="REV", help="compare with this revision (default: where HEAD left main)")
    parser.add_argument("--dry-run", action="store_true", help="say what would run, and run nothing")
    parser.add_argument(
        "--json", action="store_true", help="write the choice with all reasons as JSON, and run nothing"
    )
    parser.add_argument(
        "--likely",
        action="store_true",
        help="leave out tests that did nothing with the changed files when they were recorded; what they execute has "
        "changed since, so they may now",
    )
    parser.add_argument("-x", action="store_true", help="stop at the first failure")
    parser.add_argument(
        "--record",
        metavar="FILE",
        type=Path,
        default=recordfile.COMMITTED,
        help="what each test executed (default: the committed record)",
    )
    return parser


def _defined(sight: Sight) -> dict[str, int]:
    """Return how many test functions each test file outside of the record defines."""
    files = [file for file in sight.graph.tests if file not in sight.record.units]
    return {file: len(_functions(sight.text_now(file) or "")) for file in files}


def _functions(text: str) -> Sequence[str]:
    try:
        return [*parse(text).functions]
    except SyntaxError:
        return ["it fails when it is collected"]


if __name__ == "__main__":
    sys.exit(main())
