"""The options of the built-in models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field, model_validator

from trainmaster.contract.config import divisors
from trainmaster.models.model_facts import Facts
from trainmaster.models.strict_options import Options


class ModelOptions(Options):
    """The options that all models have."""

    free: ClassVar[frozenset[str]] = frozenset()
    """Options that weights don't depend on: they may change when a job continues from a checkpoint."""

    later: ClassVar[dict[str, Any]] = {}
    """The values of options that are newer than some checkpoints, for checkpoints without them."""

    def facts(self, name: str) -> Facts:
        """Return what the data and the layout must know of the model with this name."""
        raise NotImplementedError

    def resolved(self) -> dict[str, Any]:
        """Return all options by name, with derived values instead of those that were not set."""
        return self.model_dump()


class TransformerOptions(ModelOptions):
    """The options that all transformers have."""

    layers: int = Field(4, ge=1, le=1024)
    heads: int = Field(4, ge=1, le=1024)
    width: int = Field(128, ge=2, le=2**20)
    context: int = Field(128, ge=1, le=2**24, description="Tokens that the model sees at once: T.")

    @model_validator(mode="after")
    def _heads_fit(self) -> TransformerOptions:
        if self.width % self.heads or self.width // self.heads % 2:
            good = max(1, round(self.width / (2 * self.heads))) * 2 * self.heads
            raise ValueError(
                f"width / heads must be an even whole number: width {self.width} / heads {self.heads} = "
                f"{self.width / self.heads:g}; width {good} would be possible"
            )
        return self


class DecoderOptions(TransformerOptions):
    """The options of all decoder-only transformers. Positions are rotary, so that the weights fit any context."""

    free = TransformerOptions.free | {"context"}
    later: ClassVar[dict[str, Any]] = {"reversible": False}
    reversible: bool = Field(
        False, description="Two streams instead of one: another model, which can be trained with recompute Reversible."
    )

    def resolved(self) -> dict[str, Any]:
        # Left out as before, for releases that don't know it.
        return {k: v for k, v in super().resolved().items() if k not in self.later or v != self.later[k]}


class BertOptions(TransformerOptions):
    """The options of an encoder with learned positions, LayerNorm and biases, trained on masked tokens."""

    vocabulary: int = Field(264, ge=2, le=2**24, description="Tokens, [MASK] among them; bytes need 257.")
    mask_token: int = Field(-1, ge=-1, description="The number of [MASK]; -1: the last of the vocabulary.")

    @model_validator(mode="after")
    def _mask_is_known(self) -> BertOptions:
        if self.mask_token >= self.vocabulary:
            raise ValueError(f"mask_token {self.mask_token} is no token of vocabulary {self.vocabulary}")
        return self

    @property
    def mask(self) -> int:
        """Return the number of the token [MASK]."""
        return self.vocabulary - 1 if self.mask_token < 0 else self.mask_token

    def facts(self, name: str) -> Facts:
        return Facts(
            name,
            self.layers,
            self.heads,
            self.heads,
            4 * self.width,
            self.vocabulary,
            self.context,
            objective="MaskedTokens",
            mask_token=self.mask,
            axes=frozenset({"tp", "pp"}),
        )

    def resolved(self) -> dict[str, Any]:
        return {**super().resolved(), "mask_token": self.mask}


class GPTOptions(DecoderOptions):
    """The options of a decoder-only transformer over bytes: rotary positions, RMS norm, no biases."""

    free = DecoderOptions.free | {"dropout"}
    dropout: float = Field(0.0, description="Only 0 so far.")

    def facts(self, name: str) -> Facts:
        return Facts(
            name,
            self.layers,
            self.heads,
            self.heads,
            4 * self.width,
            256,
            self.context,
            reversible=self.reversible,
        )

    @model_validator(mode="after")
    def _without_dropout(self) -> GPTOptions:
        if self.dropout != 0.0:
            raise ValueError(
                f"dropout {self.dropout} is not supported yet, only 0: its masks would have to survive a restart"
            )
        return self


class LlamaOptions(DecoderOptions):
    """The options of a Llama: SwiGLU, grouped queries, rotary positions, RMS norm, no biases."""

    kv_heads: int = Field(0, ge=0, le=1024, description="Heads of keys and values; 0: as many as heads.")
    hidden: int = Field(0, ge=0, le=2**24, description="Of the MLP. 0: 8/3 of width, up to the next multiple of 16.")
    vocabulary: int = Field(256, ge=2, le=2**24, description="Tokens; bytes need 256.")
    rope_theta: float = Field(10_000.0, gt=0, description="Base of the rotary embedding.")
    norm_eps: float = Field(1e-5, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: Any) -> Any:
        if isinstance(values, dict) and not values.get("kv_heads"):
            values = {**values, "kv_heads": values.get("heads", cls.model_fields["heads"].default)}
        return values

    @model_validator(mode="after")
    def _groups_fit(self) -> LlamaOptions:
        if self.heads % self.kv_heads:
            good = ", ".join(map(str, divisors(self.heads)))
            raise ValueError(f"kv_heads {self.kv_heads} doesn't divide heads {self.heads}; {good} would")
        return self

    def facts(self, name: str) -> Facts:
        return Facts(
            name,
            self.layers,
            self.heads,
            self.kv_heads,
            self.hidden_width,
            self.vocabulary,
            self.context,
            reversible=self.reversible,
        )

    def resolved(self) -> dict[str, Any]:
        return {**super().resolved(), "hidden": self.hidden_width}

    @property
    def hidden_width(self) -> int:
        """Return the hidden width of the MLP."""
        return self.hidden or -(-self.width * 8 // 3 // 16) * 16


class MoEOptions(LlamaOptions):
    """The options of a Llama with a mixture of experts in each block."""

    free = LlamaOptions.free | {"balance"}
    experts: int = Field(8, ge=2, le=4096)
    experts_per_token: int = Field(2, ge=1, le=64)
    balance: float = Field(0.01, ge=0, description="Weight of the loss that keeps experts evenly used.")

    def facts(self, name: str) -> Facts:
        return replace(super().facts(name), experts=self.experts)

    @model_validator(mode="after")
    def _enough_experts(self) -> MoEOptions:
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token {self.experts_per_token} is more than experts {self.experts}")
        return self

    @model_validator(mode="after")
    def _not_reversible(self) -> MoEOptions:
        if self.reversible:
            raise ValueError(
                "reversible: inputs that are computed again differ in their last bits, so tokens could choose other "
                "experts; only false would do"
            )
        return self


class CNNOptions(ModelOptions):
    """The options of a convolutional network over images."""

    layers: int = Field(2, ge=1, le=1024)
    width: int = Field(32, ge=1, le=2**16, description="Channels between convolutions.")
    groups: int = Field(4, ge=1, description="Of channels that are normalized together.")
    channels: int = Field(1, ge=1, le=2**16)
    height: int = Field(8, ge=1, le=2**16)
    image_width: int = Field(8, ge=1, le=2**16)
    classes: int = Field(10, ge=2, le=2**24)

    @model_validator(mode="after")
    def _groups_fit(self) -> CNNOptions:
        if self.width % self.groups:
            good = ", ".join(map(str, divisors(self.width)))
            raise ValueError(f"groups {self.groups} doesn't divide width {self.width}; {good} would")
        return self

    def facts(self, name: str) -> Facts:
        return Facts(
            name,
            self.layers,
            heads=1,
            kv_heads=1,
            hidden=self.width,
            vocabulary=self.classes,
            context=0,
            objective="Class",
            image=(self.channels, self.height, self.image_width),
            axes=frozenset(),
        )
