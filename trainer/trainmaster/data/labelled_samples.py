"""Samples with one label each: `inputs.npy` [N, C, H, W] (uint8 or float32) and `labels.npy` [N] (integers), or the
digits of scikit-learn. Files are memory-mapped, and nothing is unpickled."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainmaster.data.sample_order import Order
from trainmaster.data.skipped_samples import Skips
from trainmaster.data.source import Batch
from trainmaster.errors import DataError

DIGITS = "@digits"
PROBES = 256


@dataclass(frozen=True)
class Labelled:
    """Inputs with one label each, and the path that they come from."""

    path: str
    inputs: Any  # [N, C, H, W]
    labels: Any  # [N]

    def check(self, image: tuple[int, ...], classes: int) -> None:
        """Raise DataError if a model of images [C, H, W] and this number of classes cannot take the data."""
        if self.inputs.shape[1:] != image:
            raise DataError(
                f"data.path: {self.path} holds inputs of shape {list(self.inputs.shape[1:])}, but the model takes "
                f"{list(image)} (model.options channels, height, image_width)"
            )
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= classes:
            raise DataError(
                f"data.path: {self.path} holds labels from {low} to {high}, but the model knows classes 0 to "
                f"{classes - 1}; model.options.classes {max(high, 0) + 1} would be right for labels from 0 on"
            )

    @cached_property
    def fingerprint(self) -> str:
        """Return a sha256 over shapes, types, all labels, and a few probes of the inputs."""
        digest = hashlib.sha256(f"{self.inputs.shape} {self.inputs.dtype} {self.labels.dtype}".encode())
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        for i in range(0, len(self.inputs), max(1, len(self.inputs) // PROBES)):
            digest.update(np.ascontiguousarray(self.inputs[i]).tobytes())
        return f"sha256:{digest.hexdigest()}"


def find(source: str, path: str) -> Labelled:
    """Return the labelled data at `path`. Raises DataError if it is missing, or is no such pair of arrays."""
    if source == "images":
        return _digits(path)
    inputs, labels = (_array(Path(path, name)) for name in ("inputs.npy", "labels.npy"))
    if inputs.ndim != 4 or inputs.dtype not in (np.uint8, np.float32):
        raise DataError(
            f"data.path: {path}/inputs.npy has dtype {inputs.dtype} and shape {list(inputs.shape)}; uint8 or float32 "
            f"and [N, C, H, W] would be right"
        )
    if labels.shape != inputs.shape[:1] or labels.dtype.kind not in "iu":
        raise DataError(
            f"data.path: {path}/labels.npy has dtype {labels.dtype} and shape {list(labels.shape)}; integers and "
            f"[{len(inputs)}] would be right, a label for each of the inputs"
        )
    return Labelled(path, inputs, labels)


def _array(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"data.path: {path} can't be read as a NumPy array: {error}") from None


def _digits(path: str) -> Labelled:
    if path != DIGITS:
        raise DataError(f"data.path: {path} is no set of images; {DIGITS} is one, and source arrays reads folders")
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError(f"data.path: {DIGITS} needs scikit-learn in the image: pip install scikit-learn") from None
    found = load_digits()
    return Labelled(path, (found.images / 16).astype(np.float32)[:, None], found.target)


class LabelledSource:
    """A data source of labelled samples."""

    version = 1

    def __init__(self, kind: str, found: Labelled, seed: int) -> None:
        self.kind, self._found = kind, found
        self.samples = self.tokens = len(found.inputs)
        self.order = Order(self.samples, self.samples, seed)
        self.skips = Skips()

    @property
    def fingerprint(self) -> str:
        return self._found.fingerprint

    def batch(self, consumed: int, slots: range) -> Batch:
        """Return inputs [n, C, H, W] in float32, with bytes scaled to 0..1, and targets [n] in int64."""
        assert slots.step == 1
        pieces = self.skips.pieces(consumed + slots.start, len(slots))
        samples = [sample for start, count in pieces for sample in self.order(start, count).tolist()]
        inputs = self._found.inputs[samples]
        scale = 255 if inputs.dtype == np.uint8 else 1
        targets = torch.from_numpy(self._found.labels[samples].astype(np.int64))
        return Batch(torch.from_numpy(inputs.astype(np.float32) / scale), targets, len(samples))

    def valid_tokens(self, consumed: int, count: int) -> int:
        return count
