"""This machine, for agents and ranks: memory, processes, cores, the times of steps. Standard library only."""
