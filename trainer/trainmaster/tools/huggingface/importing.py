"""A folder in Hugging Face's format with a Llama, as a checkpoint of step 0 from which a job starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainmaster import models
from trainmaster.checkpoint.files import checkpoint_manifest, lineage, upload
from trainmaster.checkpoint.files.storage import PosixStorage
from trainmaster.checkpoint.state.file_layout import header
from trainmaster.contract.config import ModelConfig
from trainmaster.contract.wire.checkpoint_format import Lineage, Receipt, directory_name, receipt_name, shard_name
from trainmaster.contract.wire.message_codec import encode
from trainmaster.errors import ConfigError
from trainmaster.tools.huggingface import description, tensors
from trainmaster.tools.huggingface.exporting import INDEX, SINGLE
from trainmaster.tools.huggingface.folder import check_empty, filled
from trainmaster.tools.huggingface.tensors import Weight

STEP, ROUND = 0, 1


def import_(folder: Path, out: Path) -> str:
    """Write a checkpoint of fp32 weights to `out`. Return what was done, for a person.

    Only one tensor at a time is in memory. Raises ConfigError, and leaves no files then.
    """
    check_empty(out)
    file = folder / description.CONFIG
    config = _json(file)
    options = description.options_of(config, str(file))
    wanted = tensors.weights(options)
    files = _Files(folder, {tensors.HEAD: tensors.EMBEDDING} if description.is_tied(config) else {})
    files.check(wanted)
    model = models.described(ModelConfig(name="llama", options=options.resolved()))
    with filled(out):
        directory = _write(PosixStorage(out.absolute()), wanted, files, {"model": model})
    tied = (
        "\nIts head was tied to its embedding; they begin with the same weights and are trained separately."
        if files.renamed
        else ""
    )
    return (
        f"{out}: a checkpoint of the {len(wanted)} tensors of {folder}{tied}\nA job starts from it with\n"
        f"  training:\n    model: {json.dumps(model)}\n  checkpoint:\n    resume: {out.absolute()}/{directory}"
    )


class _Files:
    """The tensors of a folder, in one file or in several with an index.

    `renamed` has the tensors whose content is that of another one.
    """

    def __init__(self, folder: Path, renamed: Mapping[str, str]) -> None:
        self.folder, self.renamed = folder, renamed
        self._of: dict[str, Any] = {}
        for path in _paths(folder):
            try:
                opened: Any = safe_open(path, framework="pt")
                self._of.update(dict.fromkeys(opened.keys(), opened))
            except (SafetensorError, OSError) as error:
                raise ConfigError(f"{path} can't be read: {error}") from None

    def check(self, wanted: list[Weight]) -> None:
        """Raise ConfigError for a tensor that is missing or unknown, or has another shape or dtype."""
        for weight in wanted:
            name = self.renamed.get(weight.theirs, weight.theirs)
            if name not in self._of:
                raise ConfigError(f"{self.folder} has no tensor {name}, which a Llama of its config.json has")
            part = self._of[name].get_slice(name)
            if tuple(part.get_shape()) != weight.shape:
                raise ConfigError(
                    f"{self.folder}: tensor {name} has shape {part.get_shape()}, but by config.json it would be "
                    f"{list(weight.shape)}"
                )
            if part.get_dtype() not in tensors.IMPORTED_DTYPES:
                raise ConfigError(
                    f"{self.folder}: tensor {name} is of {part.get_dtype()}; "
                    f"{', '.join(tensors.IMPORTED_DTYPES)} can be imported"
                )
        known = {weight.theirs for weight in wanted}
        for name in self._of:
            # Frequencies of rotary positions are derived; early releases saved them.
            if name not in known and not name.endswith("rotary_emb.inv_freq"):
                raise ConfigError(f"{self.folder} has a tensor {name}, which a Llama of its config.json has not")

    def read(self, theirs: str) -> Tensor:
        """Return a tensor in fp32."""
        name = self.renamed.get(theirs, theirs)
        content: Tensor = self._of[name].get_tensor(name).to(torch.float32)
        return content


def _paths(folder: Path) -> list[Path]:
    if not (folder / INDEX).exists():
        if not (folder / SINGLE).is_file():
            raise ConfigError(f"{folder} holds neither {SINGLE} nor {INDEX}; other formats aren't read")
        return [folder / SINGLE]
    where = _json(folder / INDEX).get("weight_map")
    names = set(where.values()) if isinstance(where, dict) else set()
    if not names or not all(isinstance(name, str) and name == Path(name).name for name in names):
        raise ConfigError(f"{folder / INDEX}: weight_map must name the file of each tensor, in the same folder")
    for name in sorted(names):
        if not (folder / name).is_file():
            raise ConfigError(f"{folder / INDEX} names {name}, which isn't there")
    return [folder / name for name in sorted(names)]


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{path.parent} has no {path.name}, so it is not a model in Hugging Face's format") from None
    except NotADirectoryError:
        raise ConfigError(f"{path.parent} is not a folder") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} can't be read: it holds no JSON object")
    return content


def _write(storage: PosixStorage, wanted: list[Weight], files: _Files, common: dict[str, Any]) -> str:
    """Write the checkpoint of a world of one rank, whose round did not resume. Return its directory."""
    directory, name = directory_name(STEP, ROUND), shard_name(0)
    theirs = {weight.ours: weight.theirs for weight in wanted}
    layout = tensors.layout({weight.ours: (weight.shape, torch.float32) for weight in wanted})
    head = header(layout, {}, common)
    blocks = tensors.blocks(head, layout, lambda ours: files.read(theirs[ours]))
    file = upload.write(storage, directory, name, blocks)
    index, values, common = upload.index(*upload.read_header(head), name)
    receipt = Receipt(STEP, ROUND, 0, 1, file, index, values, common)
    storage.create_exclusive(f"{directory}/{receipt_name(0)}", encode(receipt))
    lineage.begin(storage, Lineage(ROUND, None))
    checkpoint_manifest.commit(storage, directory)
    return directory
