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
    """Return 0 if the model is written, 2 if the trainer refused it. Raise Refusal."""
    from trainmaster_operator.cli.refusal import Refusal
    from trainmaster_operator.cli.this_machine import trainer_process

    if not options.file_gb > 0:
        raise Refusal(f"--file-gb: must be above 0, not {options.file_gb}")
    trainer_process.check_installed("export", "safetensors")
    words = ["export", str(options.checkpoint), str(options.out), "--file-gb", str(options.file_gb)]
    return trainer_process.run("huggingface", words)
