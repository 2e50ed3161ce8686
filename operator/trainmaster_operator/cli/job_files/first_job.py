"""`trainmaster init`: writes the file of a first job, with comments."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

from trainmaster_operator.cli.refusal import Refusal, why

_HEAD = """\
# {first_line}
#
#   trainmaster validate {file}    lists everything that is wrong with this file
#   trainmaster run {file}         runs the job on this machine; the same command continues it after a stop
#
# Relative paths in this file start at the folder in which you give the command.
apiVersion: trainmaster.dev/v1alpha1
kind: DistributedTrainingJob
metadata:
  name: {name} # the run writes to runs/{name}
"""

_OWN_TRAINER = """\
spec:
  workers:
    replicas: 2 # number of pods; each has one rank (ranksPerPod: 1), with a GPU of its own if there are enough
  training:
    model:
      name: gpt # also: bert, llama, moe, cnn, and classes of your own
      options: {{layers: 2, heads: 4, width: 96, context: 128}}
    data:
      source: text # also: tokens, parquet, huggingface, arrays, images
      path: "@stdlib" # Python's own source; for your texts, write the path of a folder with text files
    steps: 200 # number of optimizer steps
    batch:
      global: 16 # sequences in each step, over all ranks
    optimizer:
      name: adamw
      lr: 5.0e-3
      warmupSteps: 15
    seed: 1 # decides the initial weights and the order of the data
  checkpoint:
    every: 50 # steps between two checkpoints
    keep: 3 # number of checkpoints to keep
"""

_SCRIPT = """\
spec:
  framework: PyTorch # also: TensorFlow, JAX, DeepSpeed, HuggingFace, Horovod, XGBoost
  workers:
    # Each pod has ranksPerPod ranks, by default one, or as many as a launcher in the command says (--nproc-per-node).
    # Each rank runs the command, with RANK, WORLD_SIZE and MASTER_ADDR as under torchrun.
    replicas: 2 # number of pods
    template: # a pod template of Kubernetes
      spec:
        containers:
          - name: worker
            command: {command} # add the arguments of your script to this list
  recovery:
    hang:
      limitSeconds: 600 # ranks that are silent for longer count as stuck; a smaller limit finds a hang sooner
"""

_NOT_TEXT = ("true", "false", "yes", "no", "on", "off", "y", "n", "null")
"""Words that YAML does not read as text."""


def write(file: Path, script: Path | None) -> int:
    """Write the file and print what to do next. Return 0. `script`: what each rank runs; None: the built-in trainer.
    Raise Refusal if nothing was written."""
    if script is not None and not script.is_file():
        raise Refusal(f"--script {script}: there is no such file; the path of a Python script is expected")
    try:
        content = text(file, script).encode()
    except UnicodeEncodeError:
        raise Refusal(f"{file}: the file's name and the script's must be text in UTF-8; choose another name") from None
    try:
        _create(file, content)
    except FileExistsError:
        raise Refusal(f"{file}: exists already, and is not overwritten; choose another name") from None
    except OSError as error:
        raise Refusal(f"{file}: cannot be written: {why(error)}; choose another place") from None
    sys.stdout.write(f"{file} is written: {_contents(script)}. Edit it, or run it as it is.\n")
    sys.stdout.write(f"Next: trainmaster run {shlex.quote(str(file))}\n")
    return 0


def _create(file: Path, content: bytes) -> None:
    """Create a file with this content. Raise OSError; FileExistsError if it exists. No part of a file is left."""
    with file.open("xb") as opened:
        try:
            opened.write(content)
            opened.flush()
        except OSError:
            file.unlink()
            raise


def text(file: Path, script: Path | None) -> str:
    """Return the job, as it is written to `file`."""
    first_line = f"A job of Trainmaster: {_contents(script)}."
    head = _HEAD.format(first_line=first_line, file=shlex.quote(str(file)), name=_name(file))
    if script is None:
        return head + _OWN_TRAINER.format()
    return head + _SCRIPT.format(command=json.dumps(["python", str(script)], ensure_ascii=False))


def _contents(script: Path | None) -> str:
    if script is None:
        return "a small GPT on two ranks, which learns from Python's own source"
    return f"{script} on two ranks"


def _name(file: Path) -> str:
    """Return the name of the file as the name of a job: lower-case letters, digits and dashes."""
    name = re.sub(r"[^a-z0-9]+", "-", file.stem.lower()).strip("-")[:40].strip("-")
    return name if name[:1].isalpha() and name not in _NOT_TEXT else f"job-{name}".strip("-")
