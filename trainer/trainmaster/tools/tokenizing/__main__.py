"""See the package. Bad input: a sentence on stderr, exit code 2, nothing left behind."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainmaster.tools import command_exit


def main() -> int:
    parser = argparse.ArgumentParser(prog="trainmaster tokenize")
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--column", default="text")
    parser.add_argument("--glob")
    parser.add_argument("--separator")
    options = parser.parse_args()
    return command_exit.run(lambda: _tokenize(options), options.out)


def _tokenize(options: argparse.Namespace) -> str:
    from trainmaster.tools.tokenizing.documents import documents
    from trainmaster.tools.tokenizing.writing import write

    found = documents(options.source, options.column, options.glob)
    about = write(found, options.out, options.tokenizer, options.separator)
    return (
        f"{options.out}: {about['tokens']:,} tokens of {about['documents']:,} documents, each ended by "
        f"{about['separator']['token']}\nA job reads them with\n  training:\n"
        f"    model: {{name: llama, options: {{vocabulary: {about['vocabulary']}}}}}\n"
        f"    data: {{source: tokens, path: {options.out.absolute()}}}"
    )


if __name__ == "__main__":
    sys.exit(main())
