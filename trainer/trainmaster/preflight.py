"""What can be known of a training config before any rank starts: options of the model and of the source, the data.

Imports neither torch nor numpy. `python -m trainmaster.preflight` reads the config as JSON from stdin and prints the
problems as JSON: a list of sentences, each led by the path of what is wrong below `spec.training`.
"""

from __future__ import annotations

import json
import sys

from trainmaster import data, models
from trainmaster.contract.config import TrainingConfig
from trainmaster.data.files import find, windows
from trainmaster.errors import ConfigError, DataError


def check(config: TrainingConfig) -> list[str]:
    """All problems, as sentences; empty when there are none."""
    problems: list[str] = []
    context = options = None
    try:
        context = models.validate(config.model).context
    except ConfigError as error:
        problems += str(error).splitlines()
    try:
        options = data.validate(config.data)
    except ConfigError as error:
        problems += str(error).splitlines()
    if options is not None:
        try:
            text = find(config.data.path, options)
            if context is not None:
                windows(text, context, config.batch.global_)
        except DataError as error:
            problems.append(str(error))
    return problems


def main() -> int:
    json.dump(check(TrainingConfig.model_validate_json(sys.stdin.read())), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
