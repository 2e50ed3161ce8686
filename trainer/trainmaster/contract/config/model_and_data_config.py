"""The fields of `training.model` and `training.data`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from trainmaster.contract.config.config_model import Name, Strict


class ModelConfig(Strict):
    """Which model is trained, with its options."""

    name: Name = Field(
        "gpt",
        description="The model: the name of a built-in model (gpt, llama, moe, bert or cnn), or module:function of "
        "your own code. Default: gpt.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of the model. gpt has layers (default 4), heads (4), width (128), context (128), "
        "reversible (false). It also has dropout, for which only 0 is supported. llama has layers, heads, width, "
        "context and reversible with the same defaults, and kv_heads (as many as heads), hidden (8/3 of width), "
        "vocabulary (256), rope_theta (10000) and norm_eps (1e-5). docs/models.md has the options of all models. "
        "The trainer checks them before any rank starts. Default: the options of the model.",
    )


class DataConfig(Strict):
    """Which data is read, how, and from where."""

    source: Name = Field(
        "text",
        description="The kind of data: text (the text files of a folder, read as bytes), tokens (files of token "
        "numbers), parquet (a column of Parquet files), huggingface (a column of a dataset that Hugging Face's "
        "save_to_disk wrote), or images or arrays (samples with labels). Default: text.",
    )
    path: Annotated[str, Field(min_length=1, max_length=4096)] = Field(
        description="The path of the data, as the ranks see it. @stdlib is the folder of Python's standard library; "
        "write it in quotes, because YAML refuses a value that begins with @."
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of the data source. The trainer checks them before any rank starts, and docs/data.md "
        "describes them. Default: the options of the source.",
    )
