"""`trainmaster tokenize`: converts texts to token numbers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Converts texts to a file of token numbers, which a job reads with the data source `tokens`. The texts are "
        "text files, or a column of .parquet, .arrow (datasets of Hugging Face) or .jsonl files. Writes OUT.npy.",
        ("trainmaster tokenize texts tokens.npy --tokenizer tokenizer.json", "all text files of the folder texts"),
        (
            "trainmaster tokenize a.jsonl out.npy --tokenizer tokenizer.json --column body",
            "the field body of each line",
        ),
    )
    command.add_argument("source", type=Path, metavar="SOURCE", help="a file, or a folder of files")
    command.add_argument("out", type=Path, metavar="OUT.npy", help="the file to write")
    command.add_argument("--tokenizer", type=Path, metavar="FILE", required=True, help="a tokenizer.json")
    command.add_argument(
        "--column", metavar="NAME", default="text", help="the column of a table that holds the text (default: text)"
    )
    command.add_argument("--glob", metavar="PATTERN", help="which files of the folder to read, such as '**/*.md'")
    command.add_argument(
        "--separator",
        metavar="TOKEN",
        help="token to write after each document (default: the end-of-text token, if the tokenizer has a usual one)",
    )
    command.set_defaults(func=_tokenize)


def _tokenize(options: argparse.Namespace) -> int:
    """Return 0 if the file is written, 2 if the trainer refused it. Raise Refusal."""
    from trainmaster_operator.cli.this_machine import trainer_process

    trainer_process.check_installed("tokenize", "tokenizers", "pyarrow")
    arguments = [str(options.source), str(options.out), "--tokenizer", str(options.tokenizer)]
    arguments += ["--column", options.column]
    for name, value in (("--glob", options.glob), ("--separator", options.separator)):
        arguments += [name, value] if value is not None else []
    return trainer_process.run("tokenizing", arguments)
