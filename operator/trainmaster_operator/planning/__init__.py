"""Pure decisions: (job, status, observation, now) -> decision. One policy a file."""
