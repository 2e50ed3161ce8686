"""The states of the random generators of a user's process, which every checkpoint of `run.steps()` keeps."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


class RandomGenerators:
    """The global generators of this process: those of Python, of NumPy if it is imported, of torch, and of the
    device."""

    def state_dict(self) -> dict[str, Any]:
        """Return the states of Python's, NumPy's and torch's generators."""
        state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
        if "numpy" in sys.modules:
            state["numpy"] = sys.modules["numpy"].random.get_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the generators to what `state_dict` returned."""
        random.setstate(state["python"])
        torch.set_rng_state(state["torch"])
        if "numpy" in state and "numpy" in sys.modules:
            sys.modules["numpy"].random.set_state(state["numpy"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])
