"""Trainmaster: the built-in trainer, whose loop writes its progress itself."""

from __future__ import annotations

from trainmaster.agent.frameworks.framework import Framework
from trainmaster.agent.frameworks.pytorch import FAMILY, environment

TRAINMASTER = Framework(
    "Trainmaster",
    (),
    environment,
    family=FAMILY,
    entry={"kind": "function", "target": "trainmaster.train.loop:main"},
    executed_entry={"kind": "module", "name": "trainmaster.train.loop", "args": []},
)
