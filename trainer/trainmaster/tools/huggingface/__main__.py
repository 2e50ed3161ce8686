"""See the package. Bad input: a sentence per problem on stderr, exit code 2, nothing left behind."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainmaster.tools import command_exit


def main() -> int:
    parser = argparse.ArgumentParser(prog="trainmaster")
    verbs = parser.add_subparsers(dest="verb", required=True)
    export = verbs.add_parser("export")
    export.add_argument("source", type=Path)
    export.add_argument("out", type=Path)
    export.add_argument("--file-gb", type=float)
    export.add_argument("--format")
    import_ = verbs.add_parser("import")
    import_.add_argument("source", type=Path)
    import_.add_argument("out", type=Path)
    options = parser.parse_args()

    def work() -> str:
        if options.verb == "export":
            from trainmaster.tools.huggingface.exporting import export as run_export

            file_bytes = None if options.file_gb is None else int(options.file_gb * 10**9)
            return run_export(options.source, options.out, file_bytes, options.format)
        from trainmaster.tools.huggingface.importing import import_ as run_import

        return run_import(options.source, options.out)

    return command_exit.run(work, options.out)


if __name__ == "__main__":
    sys.exit(main())
