"""Pure decisions: (job, status, observation, now) -> decision. One policy a file."""

from trainmaster_operator.planning.plan import plan
from trainmaster_operator.planning.rounds.directives import directive

__all__ = ["directive", "plan"]
