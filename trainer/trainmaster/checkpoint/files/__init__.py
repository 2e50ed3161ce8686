"""Checkpoints as files: storage, lineage, memory of agents, uploads. Standard library only."""
