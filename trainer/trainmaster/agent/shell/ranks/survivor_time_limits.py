"""Time limits after a rank has failed: how long the other ranks may take to save, and how long a verdict waits for
that of another rank."""

from __future__ import annotations

CASCADE_GRACE_S = 0.25
"""Seconds for which a failure that was caused by a peer waits for the verdict on that peer. Other failures do not
wait."""

PEER_FAILURE_S = 10.0
"""Seconds after another rank's failure within which an abort without a reason of its own counts as its consequence.
NCCL looks for lost peers every few seconds."""

RESCUE_ANSWER_S = 0.25
"""Seconds that a rank has to answer that it will save its last step. A rank that can't is stuck with all its
threads."""
RESCUE_LIMIT_S = 20.0
"""Seconds that the save may take then: the state is copied once, from memory to memory."""
