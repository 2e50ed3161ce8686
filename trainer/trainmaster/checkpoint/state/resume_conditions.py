"""How a round is told to resume, and which checkpoints it accepts: of the same model, of an optimizer that fits."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from trainmaster import models
from trainmaster.contract.config import ModelConfig
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.checkpoint_format import Manifest
from trainmaster.data.skipped_samples import Skips
from trainmaster.errors import ConfigError


@dataclass(frozen=True)
class Resume:
    """How a round is told to resume: its number, its job, and `resume` of the job's spec."""

    round: int  # 0: no operator numbers the rounds, so the next free number is taken
    job: str = ""
    resume: str = "Auto"
    skipped: tuple[tuple[int, int], ...] = ()  # samples to leave out: checkpoints made with them are not used
    model: ModelConfig | None = None  # a checkpoint of another model is refused; None: the user's own model
    optimizer: str = ""  # a checkpoint of another optimizer may be refused; "": the user's own optimizer

    @classmethod
    def from_environment(cls, model: ModelConfig | None = None, optimizer: str = "") -> Resume:
        """Return the values that the agent has set in the environment of this rank."""
        env = os.environ
        return cls(
            model=model,
            optimizer=optimizer,
            round=int(env.get(environment.ROUND) or 0),
            job=env.get(environment.JOB_UID, ""),
            resume=env.get(environment.RESUME) or "Auto",
            skipped=tuple((first, end) for first, end in json.loads(env.get(environment.SKIPPED) or "[]")),
        )

    def check(self, manifest: Manifest, path: str) -> None:
        """Raise ConfigError if the checkpoint at `path` was made with another model or an unfit optimizer."""
        if self.model is not None:
            models.check_same(manifest.model, self.model, f"checkpoint {path}")
        # After adamw, the other optimizers start with a fresh momentum. After each other, they would load a momentum of
        # the wrong kind.
        if self.optimizer and manifest.optimizer not in ("", "adamw", self.optimizer):
            raise ConfigError(
                f"optimizer.name: {self.optimizer} can't continue from checkpoint {path}, which was made with "
                f"{manifest.optimizer}: they keep different kinds of momentum; use {manifest.optimizer}"
            )

    def comes_late(self, manifest: Manifest) -> bool:
        """Return True if this checkpoint was made with samples that are to be left out."""
        cursor = manifest.data
        consumed = int(cursor.get("consumed", 0))
        return bool(self.skipped) and Skips(cursor.get("skipped", [])).took(consumed, self.skipped)
