"""Pure decisions: (spec, status, observation, now) -> decision. Each policy is one module."""

from trainmaster_operator.planning.plan import plan
from trainmaster_operator.planning.rounds.directives import directive

__all__ = ["directive", "plan"]
