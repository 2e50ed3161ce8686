"""Who leads: the Lease, its election, and what a new leader must know of the last one."""
