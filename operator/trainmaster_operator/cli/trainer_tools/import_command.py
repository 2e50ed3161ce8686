"""`trainmaster import`: converts a Llama in Hugging Face's format to a checkpoint."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Converts a Llama in the format of Hugging Face's transformers (config.json and safetensors files) to a "
        "checkpoint that a job can start from. Writes CHECKPOINT_DIR, and prints the fields that the job needs.",
        ("trainmaster import Llama-3.2-1B llama-start", "writes the folder llama-start"),
        ("trainmaster import models/my-llama runs/llama/start", "writes the folder runs/llama/start"),
    )
    common.add_folder(command, "folder", metavar="HF_DIR", help="a folder with config.json and model.safetensors")
    common.add_folder(command, "out", metavar="CHECKPOINT_DIR", help="the folder to write, which is empty or new")
    command.set_defaults(func=_import)


def _import(options: argparse.Namespace) -> int:
    """Return 0 if the checkpoint is written, 2 if the trainer refused it. Raise Refusal."""
    from trainmaster_operator.cli.this_machine import trainer_process

    trainer_process.check_installed("import", "safetensors")
    return trainer_process.run("huggingface", ["import", str(options.folder), str(options.out)])
