"""The HTTP channel to the agents, and what this leader knows about the agents."""
