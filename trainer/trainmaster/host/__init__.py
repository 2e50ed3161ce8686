"""This machine, as agents and ranks see it: memory, processes, cores and the times of steps. Standard library only."""
