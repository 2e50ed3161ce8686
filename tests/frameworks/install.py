"""Install the environments of all frameworks that are tested: `python -m tests.frameworks.install [--smoke]`."""

from __future__ import annotations

import argparse

from tests.frameworks.environments import python_of
from tests.frameworks.runs import SMOKE, SUBJECTS


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.frameworks.install", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="only those of the part that CI runs")
    chosen = SMOKE if parser.parse_args().smoke else SUBJECTS
    for name in sorted({SUBJECTS[name].environment for name in chosen}):
        print(python_of(name), flush=True)


if __name__ == "__main__":
    main()
