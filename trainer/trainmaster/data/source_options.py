"""The options of the built-in data sources."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainmaster.models.model_facts import Objective
from trainmaster.models.strict_options import Options


class WindowOptions(Options):
    """The options of a source of windows of a long sequence."""

    objective: Objective | None = Field(
        None, description="NextToken or MaskedTokens: what the model is to tell. Default: what it is made for."
    )

    @property
    def shard(self) -> int:
        """Return the number of tokens of a shard, within which samples are shuffled."""
        raise NotImplementedError


class LabelledOptions(Options):
    """The options of a source of labelled samples: there are none."""


class TextOptions(WindowOptions):
    glob: str | None = Field(
        None,
        min_length=1,
        description="Which files below the path, such as **/*.txt. Default: all that look like text (@stdlib: **/*.py)",
    )
    shardBytes: int = Field(
        2**30,
        ge=1,
        description="Shuffling stays within shards of this size, which are shuffled too: it bounds disk seeks.",
    )

    @property
    def shard(self) -> int:
        return self.shardBytes


class TokenOptions(WindowOptions):
    dtype: Literal["uint16", "uint32", "int32", "int64"] = Field(
        "uint16", description="Of the numbers in .bin files, little-endian; .npy files say it themselves."
    )
    shardTokens: int = Field(
        2**29,
        ge=1,
        description="Shuffling stays within shards of this size, which are shuffled too: it bounds disk seeks.",
    )

    @property
    def shard(self) -> int:
        return self.shardTokens


class TableOptions(WindowOptions):
    column: str = Field(
        "text", min_length=1, description="The column with the texts, or with lists of integers, which are tokens."
    )
    tokenizer: str | None = Field(
        None,
        min_length=1,
        description="A tokenizer.json, for texts: its path as the ranks see it. Default: a token is a byte.",
    )
    separator: str | None = Field(
        None,
        min_length=1,
        description="The token that ends each text. Default: the end-of-text token, if the tokenizer has a usual one.",
    )
    shardTokens: int = Field(
        2**24,
        ge=1,
        description="Shuffling stays within shards of this size, which are shuffled too: it bounds what is decoded.",
    )

    @property
    def shard(self) -> int:
        return self.shardTokens
