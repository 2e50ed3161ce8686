"""How tensors lie in a checkpoint's file: the safetensors format, its header, and the order of the pieces."""

from __future__ import annotations

import functools
import json
import struct
from dataclasses import dataclass
from typing import Any

import torch

from trainmaster.checkpoint.files.upload import METADATA
from trainmaster.errors import ConfigError

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""torch's dtypes by their names in the safetensors format."""

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Piece:
    """A contiguous block of a tensor that this rank saves: its offset and the shape of the whole tensor, in
    elements."""

    name: str
    offset: list[int]
    whole: list[int]
    data: torch.Tensor

    @property
    def key(self) -> str:
        """Return the name of the piece in its file: the name of the tensor and, for a part of a tensor, also the offset
        of the part in elements, as in `model.weight@0,64`."""
        return self.name if self.whole == list(self.data.shape) else f"{self.name}@{','.join(map(str, self.offset))}"


@dataclass(frozen=True)
class Layout:
    """How pieces lie in a file in the safetensors format, after its header."""

    entries: dict[str, Any]  # the entries of the header
    chunks: dict[str, Any]  # {key: [name, shape of the whole, offset]} of the pieces that aren't whole tensors
    parts: list[tuple[int, int, torch.Tensor]]  # (start, end, content)
    size: int

    @functools.cached_property
    def entries_text(self) -> str:
        """Return the entries of the header as JSON, without the braces around them, so that more can be added."""
        return _json(self.entries)[1:-1]

    @functools.cached_property
    def chunks_text(self) -> str:
        """Return the offsets of the pieces that are not whole tensors, as JSON for the header's metadata."""
        return _json(self.chunks)


def lay_out(pieces: list[Piece], behind: Layout | None = None) -> Layout:
    """Return the layout of `pieces`, placed after the pieces of `behind`. Raises ConfigError for an unsupported
    dtype."""
    entries: dict[str, Any] = dict(behind.entries) if behind else {}
    chunks = dict(behind.chunks) if behind else {}
    parts = list(behind.parts) if behind else []
    position = behind.size if behind else 0
    # Wide elements first: without holes between them (the format allows none) all are aligned. Then the small ones,
    # since all ranks want those (step counts) and so read them at once.
    for piece in sorted(pieces, key=lambda piece: (-piece.data.element_size(), piece.data.numel(), piece.key)):
        tensor = piece.data.detach()
        if tensor.dtype not in DTYPE_NAMES:
            raise ConfigError(f"tensor {piece.name}: checkpoints can't keep {tensor.dtype}")
        end = position + tensor.numel() * tensor.element_size()
        entries[piece.key] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        if piece.key != piece.name:
            chunks[piece.key] = [piece.name, piece.whole, piece.offset]
        parts.append((position, end, tensor))
        position = end
    return Layout(entries, chunks, parts, position)


def header(layout: Layout, values: dict[str, Any], common: dict[str, Any], reserved: int = 0) -> bytes:
    """Return the header of a checkpoint's file, padded to `reserved` bytes if it is shorter."""
    metadata = {"chunks": layout.chunks_text, "values": _json(values), "common": _json(common)}
    return file_header(layout, metadata, reserved)


def file_header(layout: Layout, metadata: dict[str, str], reserved: int = 0) -> bytes:
    """Return the header of any file in the safetensors format."""
    parts = [part for part in (layout.entries_text, f'"{METADATA}":{_json(metadata)}') if part]
    text = ("{" + ",".join(parts) + "}").encode()
    text += b" " * max(-len(text) % 8, reserved - 8 - len(text))
    return struct.pack("<Q", len(text)) + text


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
