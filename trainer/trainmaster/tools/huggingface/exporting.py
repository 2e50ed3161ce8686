"""The weights of a checkpoint, with any layout, for other programs.

A Llama becomes a folder that `LlamaForCausalLM.from_pretrained` loads. Every other model, and a Llama on request,
becomes one file with its parameters by their names, and model.json, from which `models.build` makes the module.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainmaster import models
from trainmaster.checkpoint.files import checkpoint_manifest
from trainmaster.checkpoint.files.storage import PosixStorage, Storage, open_storage
from trainmaster.checkpoint.state.file_layout import DTYPES, file_header
from trainmaster.checkpoint.state.load_tensors import load_tensors
from trainmaster.checkpoint.state.resume import locate
from trainmaster.contract.config import ModelConfig
from trainmaster.contract.wire.checkpoint_format import Manifest
from trainmaster.errors import ConfigError
from trainmaster.models.model_options import LlamaOptions
from trainmaster.models.user_model import OwnOptions
from trainmaster.tools.huggingface import description, tensors
from trainmaster.tools.huggingface.folder import check_empty, filled
from trainmaster.tools.huggingface.tensors import Weight

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MODEL = "model.json"
HUGGING_FACE, TRAINMASTER = "huggingface", "trainmaster"
FILE_BYTES = 5 * 10**9


def export(checkpoint: Path, out: Path, file_bytes: int | None = None, form: str | None = None) -> str:
    """Write the weights of a checkpoint to the folder `out`. Return what was done, for a person.

    `checkpoint` is its folder, or a folder of checkpoints, of which the newest is used. `form` is HUGGING_FACE, the
    default for a Llama, or TRAINMASTER, the default for every other model. Hugging Face's files have at most
    `file_bytes` bytes (default: FILE_BYTES), more if one tensor is larger. Only one tensor at a time is in memory, and
    no state of the optimizer is read. Raises ConfigError, and leaves no files then.
    """
    check_empty(out)
    if not checkpoint.is_dir():
        raise ConfigError(f"there is no checkpoint {checkpoint}; its folder, or one of checkpoints, is expected")
    root, directory = locate(str(checkpoint))
    storage = open_storage(root)
    try:
        manifest = checkpoint_manifest.read_manifest(storage, directory)
        config, options = _model(manifest, f"{root}/{directory}")
        form = form or (TRAINMASTER if _refusal(config, options) else HUGGING_FACE)
        if form == TRAINMASTER:
            if file_bytes is not None:
                raise ConfigError("--file-gb: only Hugging Face's format can have several files; leave it out")
            wanted = _own_weights(manifest, options)
        else:
            if refusal := _refusal(config, options):
                raise ConfigError(f"checkpoint {root}/{directory} is of {refusal}; use --format {TRAINMASTER}")
            assert isinstance(options, LlamaOptions)
            wanted = tensors.weights(options)
        _check_whole(manifest, wanted)
        checkpoint_manifest.verify(storage, directory, [(file.name, file.size, file.sha256) for file in manifest.files])
    except checkpoint_manifest.Damaged as damage:
        raise ConfigError(f"{checkpoint} can't be exported: {damage}") from None
    about: dict[str, Any] = models.described(config)
    with filled(out):
        files = _Files(storage, directory, manifest)
        if form == TRAINMASTER:
            names, last = files.write(out, wanted, None), MODEL
        else:
            names, last = files.write(out, wanted, file_bytes or FILE_BYTES), description.CONFIG
            assert isinstance(options, LlamaOptions)
            dtype = str(DTYPES[manifest.tensors[wanted[0].ours].dtype]).removeprefix("torch.")
            about = description.described(options, dtype)
        # The last one: without it nothing is loaded.
        PosixStorage(out).write(last, [json.dumps(about, indent=2).encode() + b"\n"])
    done = f"{out}: {len(wanted)} tensors of {root}/{directory} (step {manifest.step})"
    if form == TRAINMASTER:
        return f"{done} in {SINGLE}, and the name and options of model {config.name} in {MODEL}"
    return f"{done} in {len(names)} files" if len(names) > 1 else done


def _model(manifest: Manifest, checkpoint: str) -> tuple[ModelConfig, models.ModelOptions]:
    """Return the model that the checkpoint says it is of, and its options. Raises ConfigError."""
    if not manifest.model:
        raise ConfigError(
            f"checkpoint {checkpoint} doesn't say what model it is of: a loop of one's own made it, or a release "
            f"before this one; only checkpoints of a job with training.model can be exported"
        )
    config = ModelConfig(name=str(manifest.model.get("name")), options=manifest.model.get("options", {}))
    try:
        return config, models.validate(config)
    except ConfigError as error:
        raise ConfigError("\n".join(f"checkpoint {checkpoint}: {line}" for line in str(error).splitlines())) from None


def _refusal(config: ModelConfig, options: models.ModelOptions) -> str:
    """Return why a model can't be written for Hugging Face's transformers; "" if it can."""
    if not isinstance(options, LlamaOptions) or config.name != "llama":
        return f"model {config.name}, and only those of model llama can be exported to Hugging Face's format"
    return "a reversible model, whose two streams no Llama elsewhere has" if options.reversible else ""


def _own_weights(manifest: Manifest, options: models.ModelOptions) -> list[Weight]:
    """Return all tensors of a model by the names that its module has for them.

    A user's own model is not built: what the checkpoint has is what its module had.
    """
    if isinstance(options, OwnOptions):
        shapes = {n.removeprefix("model."): t.shape for n, t in manifest.tensors.items() if n.startswith("model.")}
    else:
        with torch.device("meta"):
            shapes = {name: [*tensor.shape] for name, tensor in models.module(options).state_dict().items()}
    return [Weight(f"model.{name}", name, tuple(shape)) for name, shape in shapes.items()]


def _check_whole(manifest: Manifest, wanted: Sequence[Weight]) -> None:
    """Raise Damaged for a tensor that is missing, has another shape, or is not covered by its chunks."""
    for weight in wanted:
        found = manifest.tensors.get(weight.ours)
        if found is None:
            raise checkpoint_manifest.Damaged(f"it has no tensor {weight.ours}")
        if tuple(found.shape) != weight.shape:
            raise checkpoint_manifest.Damaged(f"tensor {weight.ours} has shape {found.shape}, not {list(weight.shape)}")
        if sum(torch.Size(chunk.shape).numel() for chunk in found.chunks) != torch.Size(found.shape).numel():
            raise checkpoint_manifest.Damaged(f"tensor {weight.ours} has parts that no file holds")


class _Files:
    """Writes the tensors of a checkpoint to files for other programs."""

    def __init__(self, storage: Storage, directory: str, manifest: Manifest) -> None:
        self.storage, self.directory, self.manifest = storage, directory, manifest

    def write(self, out: Path, wanted: Sequence[Weight], file_bytes: int | None) -> list[str]:
        """Write the files, with an index if there is more than one. Return their names. None: one file of any size."""
        groups = [[*wanted]] if file_bytes is None else self._groups(wanted, file_bytes)
        count = len(groups)
        names = [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)] if count > 1 else [SINGLE]
        total = 0
        for name, group in zip(names, groups, strict=True):
            total += self._write_one(PosixStorage(out), name, group)
        if count > 1:
            where = {w.theirs: name for name, group in zip(names, groups, strict=True) for w in group}
            index = json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2)
            PosixStorage(out).write(INDEX, [index.encode() + b"\n"])
        return names

    def _groups(self, wanted: Sequence[Weight], file_bytes: int) -> list[list[Weight]]:
        groups: list[list[Weight]] = []
        room = 0
        for weight in wanted:
            size = torch.Size(weight.shape).numel() * self._dtype(weight).itemsize
            if not groups or size > room:
                groups.append([])
                room = file_bytes
            groups[-1].append(weight)
            room -= size
        return groups

    def _write_one(self, out: PosixStorage, name: str, group: Sequence[Weight]) -> int:
        """Write one file, and return the bytes of its tensors."""
        by_name = {weight.theirs: weight for weight in group}
        layout = tensors.layout({w.theirs: (w.shape, self._dtype(w)) for w in group})
        head = file_header(layout, {"format": "pt"})  # transformers asks for it
        out.write(name, tensors.blocks(head, layout, lambda theirs: self._read(by_name[theirs])))
        return layout.size

    def _read(self, weight: Weight) -> Tensor:
        content = torch.empty(weight.shape, dtype=self._dtype(weight))
        load_tensors(self.storage, self.directory, self.manifest, {weight.ours: content})
        return content

    def _dtype(self, weight: Weight) -> torch.dtype:
        return DTYPES[self.manifest.tensors[weight.ours].dtype]
