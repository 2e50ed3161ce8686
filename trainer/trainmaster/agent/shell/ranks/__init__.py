"""The ranks of one round as the agent sees them: processes, stacks, ends."""
