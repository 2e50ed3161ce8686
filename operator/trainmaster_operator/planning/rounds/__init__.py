"""When a round opens, with which pods, and what its agents are told."""
