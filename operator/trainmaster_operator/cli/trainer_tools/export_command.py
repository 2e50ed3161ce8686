"""`trainmaster export`: writes the weights of a checkpoint for other programs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainmaster_operator.cli import common_options as common

if TYPE_CHECKING:
    from trainmaster_operator.cli.argument_parser import Parser


def declare(command: Parser) -> None:
    command.describe(
        "Writes the trained weights of a checkpoint to OUT_DIR, without the state of the optimizer. A Llama becomes a "
        "folder that Hugging Face's transformers loads: config.json and safetensors files. Every other model becomes "
        "model.safetensors, with its parameters by their names, and model.json, with the model's name and options. "
        "The checkpoint can come from any parallel layout.",
        ("trainmaster export runs/gpt/checkpoints gpt-weights", "the newest checkpoint of a run"),
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
        "--file-gb", type=float, metavar="N", help="maximum size of a file of Hugging Face's format in GB (default: 5)"
    )
    command.add_argument(
        "--format",
        choices=("huggingface", "trainmaster"),
        help="huggingface: for transformers, only Llamas; trainmaster: one file with the parameters by Trainmaster's "
        "names, any model (default: huggingface for a Llama, trainmaster for other models)",
    )
    command.set_defaults(func=_export)


def _export(options: argparse.Namespace) -> int:
    """Return 0 if the model is written, 2 if the trainer refused it. Raise Refusal."""
    from trainmaster_operator.cli.refusal import Refusal
    from trainmaster_operator.cli.this_machine import trainer_process

    if options.file_gb is not None and not 0 < options.file_gb < float("inf"):
        raise Refusal(f"--file-gb: must be above 0 and finite, not {options.file_gb}")
    trainer_process.check_installed("export", "safetensors")
    words = ["export", str(options.checkpoint), str(options.out)]
    if options.file_gb is not None:
        words += ["--file-gb", str(options.file_gb)]
    if options.format:
        words += ["--format", options.format]
    return trainer_process.run("huggingface", words)
