"""Options of the built-in models."""

from __future__ import annotations

from pydantic import Field, model_validator

from trainmaster.options import Options


class GPTOptions(Options):
    """A decoder-only transformer over bytes: rotary positions, RMS norm, no biases."""

    layers: int = Field(4, ge=1, le=1024)
    heads: int = Field(4, ge=1, le=1024)
    width: int = Field(128, ge=2, le=2**20)
    context: int = Field(128, ge=1, le=2**24, description="Bytes that the model sees at once: T.")
    dropout: float = Field(0.0, description="Only 0 so far.")

    @model_validator(mode="after")
    def _fit_together(self) -> GPTOptions:
        if self.width % self.heads or self.width // self.heads % 2:
            good = max(1, round(self.width / (2 * self.heads))) * 2 * self.heads
            raise ValueError(
                f"width {self.width} over {self.heads} heads must leave each head an even number; width {good} would"
            )
        if self.dropout != 0.0:
            raise ValueError(
                f"dropout {self.dropout} is not supported yet, only 0: its masks would have to survive a restart"
            )
        return self
