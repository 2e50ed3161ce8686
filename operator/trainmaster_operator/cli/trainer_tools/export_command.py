"""`trainmaster export`: converts a checkpoint of a Llama to Hugging Face's format."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Converts a checkpoint of a Llama to a folder that Hugging Face's transformers loads. Writes config.json and "
        "safetensors files to OUT_DIR. The checkpoint can come from any parallel layout.",
        ("trainmaster export runs/llama/checkpoints llama-hf", "the newest checkpoint of a run"),
        ("trainmaster export runs/llama/checkpoints llama-hf --file-gb 2", "in files of at most 2 GB"),
    )
    common.add_folder(
        command,
        "checkpoint",
        metavar="CHECKPOINT",
        help="the folder of a checkpoint, or a folder with checkpoints, whose newest one is taken",
    )
    common.add_folder(command, "out", metavar="OUT_DIR", help="the folder to write, which is empty or new")
    command.add_argument(
        "--file-gb", type=float, default=5.0, metavar="N", help="maximum size of a file in GB (default: 5)"
    )
    command.set_defaults(func=_export)


def _export(options: argparse.Namespace) -> int:
    from trainmaster_operator.cli.trainer_tools.trainer_calls import export

    return export(options.checkpoint, options.out, options.file_gb)
