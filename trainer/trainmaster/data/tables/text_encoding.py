"""Texts as token numbers: by a tokenizer.json of Hugging Face's, or byte by byte; and what ends each text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainmaster.errors import ConfigError

SEPARATORS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]")
"""Tokens that mark the end of a text in common tokenizers."""


@dataclass(frozen=True)
class Encoding:
    """A tokenizer, and the token that ends each text."""

    tokenizer: Any
    digest: str  # sha256 of the tokenizer.json
    vocabulary: int
    end: int
    end_name: str

    unit = "tokens"
    alphabet: int | None = None

    @property
    def name(self) -> str:
        """Return a text that is the same for all that give the same tokens."""
        return f"{self.digest} {self.end}"

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype("<u2" if self.vocabulary <= 2**16 else "<u4")

    def encode(self, text: str) -> NDArray[Any]:
        """Return the tokens of a text, in one thread."""
        return np.array([*self.tokenizer.encode(text, add_special_tokens=False).ids, self.end], self.dtype)

    def encode_all(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Return the tokens of each text, made on all cores."""
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array([*each.ids, self.end], self.dtype) for each in encodings]


class ByteEncoding:
    """The bytes of UTF-8, and a NUL byte after each text."""

    name, unit, vocabulary = "bytes", "bytes", 256
    alphabet: int | None = 256
    dtype = np.dtype("u1")

    def encode(self, text: str) -> NDArray[Any]:
        return np.frombuffer(text.encode() + b"\0", self.dtype)

    def encode_all(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        return [self.encode(text) for text in texts]


def read_tokenizer(path: Path, separator: str | None, where: str, separator_option: str) -> Encoding:
    """Return the encoding of a tokenizer.json. `where` and `separator_option` name the options in refusals.

    Raises ConfigError if it can't be read, or has no token that ends a text.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ConfigError(f"{where} needs tokenizers in the image: pip install tokenizers") from None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{where} can't be read: {error.strerror}") from None
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # noqa: BLE001 the library raises nothing more special
        raise ConfigError(f"{where} is no tokenizer.json of Hugging Face's: {error}") from None
    # A file may ask to cut texts, or to fill them up to the longest of those that are encoded together.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    end, name = _find_separator(tokenizer, separator, where, separator_option)
    vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
    return Encoding(tokenizer, hashlib.sha256(content).hexdigest(), vocabulary, end, name)


def _find_separator(tokenizer: Any, wanted: str | None, where: str, option: str) -> tuple[int, str]:
    for token in (wanted,) if wanted is not None else SEPARATORS:
        number = tokenizer.token_to_id(token)
        if number is not None:
            return number, token
    tried = repr(wanted) if wanted is not None else ", ".join(SEPARATORS)
    raise ConfigError(f"{where} has no token {tried}; {option} names the one that ends a document")
