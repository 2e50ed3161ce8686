"""The supervisor of one pod, and its communication with the operator, peers, zygotes and people."""
