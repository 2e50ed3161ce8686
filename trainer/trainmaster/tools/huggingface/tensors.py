"""The tensors of a Llama, by our names and by theirs, with their shapes; and files of them.

Both rotate halves of a head (pairs i, i + K/2), so nothing is permuted: names are all that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainmaster.checkpoint.state.save import Layout, Piece, lay_out
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


@dataclass(frozen=True)
class Weight:
    ours: str  # in a checkpoint
    theirs: str
    shape: tuple[int, ...]


def weights(options: LlamaOptions) -> list[Weight]:
    """All of a Llama's, from the embedding to the head."""
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
    """Where tensors of these shapes will lie in a file. Takes no memory for them."""
    return lay_out(
        [
            Piece(name, [0] * len(shape), [*shape], torch.empty(*shape, dtype=dtype, device="meta"))
            for name, (shape, dtype) in tensors.items()
        ]
    )


def blocks(head: bytes, layout: Layout, content: Callable[[str], Tensor]) -> Iterator[bytes | memoryview]:
    """A file: its header, then one tensor after the other, which `content` makes when its turn has come."""
    yield head
    for name in layout.entries:
        yield memoryview(content(name).contiguous().reshape(-1).view(torch.uint8).numpy())
