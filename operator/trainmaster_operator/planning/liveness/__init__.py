"""Which pods, agents and ranks have ended, are silent, hang or are slow."""
