"""See the package. Bad input: a sentence per problem on stderr, exit code 2, nothing left behind."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from trainmaster.contract.wire.codes import ExitCode
from trainmaster.errors import TrainmasterError


def main() -> int:
    parser = argparse.ArgumentParser(prog="trainmaster")
    verbs = parser.add_subparsers(dest="verb", required=True)
    export = verbs.add_parser("export")
    export.add_argument("source", type=Path)
    export.add_argument("out", type=Path)
    export.add_argument("--file-gb", type=float, default=5.0)
    import_ = verbs.add_parser("import")
    import_.add_argument("source", type=Path)
    import_.add_argument("out", type=Path)
    options = parser.parse_args()
    try:
        if options.verb == "export":
            from trainmaster.huggingface.exporting import export as run_export

            said = run_export(options.source, options.out, int(options.file_gb * 10**9))
        else:
            from trainmaster.huggingface.importing import import_ as run_import

            said = run_import(options.source, options.out)
    except TrainmasterError as error:
        return _refused(str(error))
    except OSError as error:
        return _refused(f"{error.filename or options.out}: {os.strerror(error.errno) if error.errno else error}")
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(said + "\n")
    return ExitCode.OK


def _refused(text: str) -> int:
    for line in text.splitlines():
        sys.stderr.write(f"trainmaster: {line}\n")
    return ExitCode.CONFIG_ERROR


if __name__ == "__main__":
    sys.exit(main())
