"""The token that is written after each document: the one that was asked for, or one that tokenizers usually have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainmaster.errors import ConfigError

SEPARATORS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]")
"""Tokens that mark the end of a text in common tokenizers."""


def find_separator(tokenizer: Any, path: Path, wanted: str | None) -> tuple[int, str]:
    """Return (number, token) of the separator. Raises ConfigError if the tokenizer does not have it."""
    for token in (wanted,) if wanted is not None else SEPARATORS:
        number = tokenizer.token_to_id(token)
        if number is not None:
            return number, token
    tried = repr(wanted) if wanted is not None else ", ".join(SEPARATORS)
    raise ConfigError(f"--tokenizer {path} has no token {tried}; --separator names the one that ends a document")
