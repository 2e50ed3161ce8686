"""The agent: supervisor of one pod's ranks, and the zygote that they are forked from. Standard library only."""
