"""The config of a training, which the agent passes to each rank in an environment variable."""

from __future__ import annotations

import os

from pydantic import ValidationError

from trainmaster.contract.config import TrainingConfig
from trainmaster.contract.wire import environment
from trainmaster.errors import ConfigError


def read_config() -> TrainingConfig:
    """Return the config that the agent passes. Raises ConfigError with all problems at once."""
    raw = os.environ.get(environment.CONFIG)
    if not raw:
        raise ConfigError(f"{environment.CONFIG} is not set: an agent sets it, or set it to the config of a training")
    try:
        return TrainingConfig.model_validate_json(raw)
    except ValidationError as error:
        problems = [f"training.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise ConfigError("; ".join(problems)) from None
