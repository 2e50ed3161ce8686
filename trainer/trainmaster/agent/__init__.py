"""The agent: the supervisor of one pod's ranks, and the zygote that ranks are forked from. Standard library only."""
