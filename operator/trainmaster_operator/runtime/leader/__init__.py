"""Which replica leads: the Lease, its election, and what a new leader must learn about the previous one."""
