"""Checkpoints as files: storage, lineage, the memory tier of agents, and uploads. Standard library only."""
