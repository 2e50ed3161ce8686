"""Pure decisions: (job, status, observation, now) -> decision. One policy a file."""

from trainmaster_operator.planning.directive import directive
from trainmaster_operator.planning.plan import plan

__all__ = ["directive", "plan"]
