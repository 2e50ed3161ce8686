"""Options of the built-in data sources."""

from __future__ import annotations

from pydantic import Field

from trainmaster.options import Options


class TextOptions(Options):
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
