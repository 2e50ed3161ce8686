"""The tensors of a Llama, by our names and by Hugging Face's, with their shapes; and files of them.

Both rotate halves of a head (pairs i, i + K/2), so nothing is permuted: only the names differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainmaster.checkpoint.state.file_layout import Layout, Piece, lay_out
from trainmaster.models.model_options import LlamaOptions

_OF_BLOCK = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

IMPORTED_DTYPES = ("F32", "F16", "BF16", "F64")
"""Types of tensors that an import reads, by their names in the safetensors format."""


@dataclass(frozen=True)
class Weight:
    ours: str  # in a checkpoint
    theirs: str
    shape: tuple[int, ...]


def weights(options: LlamaOptions) -> list[Weight]:
    """Return all weights of a Llama, from the embedding to the head."""
    width, hidden = options.width, options.hidden_width
    keys = options.kv_heads * (width // options.heads)
    shapes: dict[str, tuple[int, ...]] = {
        "attention_norm": (width,),
        "attention.query": (width, width),
        "attention.key": (keys, width),
        "attention.value": (keys, width),
        "attention.out": (width, width),
        "mlp_norm": (width,),
        "mlp.gate": (hidden, width),
        "mlp.up": (hidden, width),
        "mlp.down": (width, hidden),
    }
    blocks = [
        Weight(f"model.blocks.{i}.{ours}.weight", f"model.layers.{i}.{theirs}.weight", shapes[ours])
        for i in range(options.layers)
        for ours, theirs in _OF_BLOCK.items()
    ]
    return [
        Weight("model.embedding.weight", EMBEDDING, (options.vocabulary, width)),
        *blocks,
        Weight("model.norm.weight", "model.norm.weight", (width,)),
        Weight("model.head.weight", HEAD, (options.vocabulary, width)),
    ]


def layout(tensors: Mapping[str, tuple[Sequence[int], torch.dtype]]) -> Layout:
    """Return the places of tensors of these shapes in a file. It takes no memory for them."""
    return lay_out(
        [
            Piece(name, [0] * len(shape), [*shape], torch.empty(*shape, dtype=dtype, device="meta"))
            for name, (shape, dtype) in tensors.items()
        ]
    )


def blocks(head: bytes, layout: Layout, content: Callable[[str], Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the content of a file: its header, and then each tensor, which `content` makes when it is needed."""
    yield head
    for name in layout.entries:
        yield memoryview(content(name).contiguous().reshape(-1).view(torch.uint8).numpy())
