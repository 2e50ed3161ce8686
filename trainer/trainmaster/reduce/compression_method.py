"""Methods to sum a vector over replicas that send less than all of it.

The sum is approximate: what a rank does not send stays in its own vector, so that it can be added to the next one
(error feedback: Karimireddy et al., arXiv 1901.09847). The sum has the same bits on all ranks.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from trainmaster.reduce.counted_collectives import Wire


class Method(Protocol):
    """A method to sum a vector over replicas."""

    keeps_error: bool
    """True if what was not sent is to be kept for the next step."""

    def sum(self, own: Tensor, present: Tensor, wire: Wire) -> tuple[Tensor, Tensor]:
        """Return (the approximate sum of `own` [N] over all ranks, the sum of `present` [P]), both in fp32.

        `present` are small numbers, summed exactly enough to tell 0 from others. What was not sent of `own` is left in
        it.
        """
        ...

    def completed(self) -> None:
        """Note that the step whose gradients were summed last is complete."""
        ...
