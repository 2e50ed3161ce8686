"""A checkpoint of a Llama, with any layout, as a folder that `LlamaForCausalLM.from_pretrained` loads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from trainmaster.checkpoint.files import checkpoint_manifest
from trainmaster.checkpoint.files.storage import PosixStorage, Storage, open_storage
from trainmaster.checkpoint.state.file_layout import DTYPES, file_header
from trainmaster.checkpoint.state.load_tensors import load_tensors
from trainmaster.checkpoint.state.resume import locate
from trainmaster.contract.wire.checkpoint_format import Manifest
from trainmaster.errors import ConfigError
from trainmaster.models.model_options import LlamaOptions
from trainmaster.models.strict_options import read
from trainmaster.tools.huggingface import description, tensors
from trainmaster.tools.huggingface.folder import check_empty, filled
from trainmaster.tools.huggingface.tensors import Weight

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def export(checkpoint: Path, out: Path, file_bytes: int) -> str:
    """Write files of at most `file_bytes` bytes, more if one tensor is larger. Return what was done, for a person.

    `checkpoint` is its folder, or a folder of checkpoints, of which the newest is used. Only one tensor at a time is in
    memory. Raises ConfigError, and leaves no files then.
    """
    check_empty(out)
    if not checkpoint.is_dir():
        raise ConfigError(f"there is no checkpoint {checkpoint}; its folder, or one of checkpoints, is expected")
    root, directory = locate(str(checkpoint))
    storage = open_storage(root)
    try:
        manifest = checkpoint_manifest.read_manifest(storage, directory)
        options = _options(manifest, f"{root}/{directory}")
        wanted = tensors.weights(options)
        _check_whole(manifest, wanted)
        checkpoint_manifest.verify(storage, directory, [(file.name, file.size, file.sha256) for file in manifest.files])
    except checkpoint_manifest.Damaged as damage:
        raise ConfigError(f"{checkpoint} can't be exported: {damage}") from None
    with filled(out):
        files = _Files(storage, directory, manifest)
        names = files.write(out, wanted, file_bytes)
        dtype = str(DTYPES[manifest.tensors[wanted[0].ours].dtype]).removeprefix("torch.")
        text = json.dumps(description.described(options, dtype), indent=2)
        # The last one: without it nothing is loaded.
        PosixStorage(out).write(description.CONFIG, [text.encode() + b"\n"])
    many = f" in {len(names)} files" if len(names) > 1 else ""
    return f"{out}: {len(wanted)} tensors of {root}/{directory} (step {manifest.step}){many}"


def _options(manifest: Manifest, checkpoint: str) -> LlamaOptions:
    if not manifest.model:
        raise ConfigError(
            f"checkpoint {checkpoint} doesn't say what model it is of: a loop of one's own made it, or a release "
            f"before this one; only checkpoints of model llama can be exported"
        )
    name = manifest.model.get("name")
    if name != "llama":
        raise ConfigError(f"checkpoint {checkpoint} is of model {name}; only those of model llama can be exported")
    options = read(LlamaOptions, manifest.model.get("options", {}), f"checkpoint {checkpoint}: model.options")
    if options.reversible:
        raise ConfigError(f"checkpoint {checkpoint} is of a reversible model, whose two streams no Llama elsewhere has")
    return options


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

    def write(self, out: Path, wanted: Sequence[Weight], file_bytes: int) -> list[str]:
        """Write the files, with an index if there is more than one. Return their names."""
        groups = self._groups(wanted, file_bytes)
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
