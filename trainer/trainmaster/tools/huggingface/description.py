"""The config.json of a Llama, and the options of our model. It imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster.errors import ConfigError
from trainmaster.models.model_options import LlamaOptions
from trainmaster.models.strict_options import read

CONFIG = "config.json"
ARCHITECTURE = "LlamaForCausalLM"

_SIZES = {
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "width": "hidden_size",
    "hidden": "intermediate_size",
    "vocabulary": "vocab_size",
}
_FIXED = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}


def described(options: LlamaOptions, dtype: str) -> dict[str, Any]:
    """Return the content of config.json. `dtype` is the dtype of the weights, by torch's name."""
    values = options.resolved()
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        **{theirs: values[ours] for ours, theirs in _SIZES.items()},
        "num_key_value_heads": options.kv_heads,
        "head_dim": options.width // options.heads,
        "max_position_embeddings": options.context,
        "rms_norm_eps": options.norm_eps,
        # Releases of transformers before 5 read the first, later ones the second.
        "rope_theta": options.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": options.rope_theta},
        **_FIXED,
        "tie_word_embeddings": False,
        # Left out they are 1 and 2, and generation would end at that token.
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": dtype,
        "dtype": dtype,
    }


def options_of(config: Mapping[str, Any], where: str) -> LlamaOptions:
    """Return the options of the Llama that config.json describes. `where` is the file, for messages.

    Raises ConfigError with everything that our model does not support, one sentence per line.
    """
    problems = list(_problems(config))
    if problems:
        raise ConfigError("\n".join(f"{where}: {problem}" for problem in problems))
    return read(
        LlamaOptions,
        {
            **{ours: config[theirs] for ours, theirs in _SIZES.items()},
            "kv_heads": config.get("num_key_value_heads") or config["num_attention_heads"],
            "context": config.get("max_position_embeddings", 2048),
            "norm_eps": config.get("rms_norm_eps", 1e-6),
            "rope_theta": _rope(config).get("rope_theta", config.get("rope_theta", 10_000.0)),
        },
        where,
    )


def is_tied(config: Mapping[str, Any]) -> bool:
    """Return True if the head shares the embedding's weights."""
    return bool(config.get("tie_word_embeddings"))


def _problems(config: Mapping[str, Any]) -> Iterator[str]:
    architectures = config.get("architectures")
    if config.get("model_type") != "llama" or architectures not in (None, [ARCHITECTURE]):
        of = ", ".join(map(str, architectures)) if isinstance(architectures, list) else config.get("model_type")
        yield f"describes {of or 'no model'}; only {ARCHITECTURE} can be imported"
        return
    for name in _SIZES.values():
        if type(config.get(name)) is not int:
            yield f"{name} must be a whole number, not {config.get(name)!r}"
    for name, only in _FIXED.items():
        if config.get(name, only) != only:
            yield f"{name} {config[name]!r} isn't supported, only {only!r}"
    if config.get("quantization_config"):
        yield "quantization_config: quantized weights aren't supported, only float32, float16 and bfloat16"
    rope = _rope(config)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
        yield f"{name} of type {kind!r} isn't supported, only plain rotary positions ('default')"
    heads, width, head = (config.get(n) for n in ("num_attention_heads", "hidden_size", "head_dim"))
    if head is not None and isinstance(heads, int) and head * heads != width:
        yield f"head_dim {head!r} isn't supported: it must be hidden_size / num_attention_heads ({width} / {heads})"


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return found if isinstance(found, Mapping) else {"rope_type": found}
