"""Which pods, agents and ranks are dead, silent, stuck or slow."""
