"""The supervisor of one pod and what it talks with: operator, peers, zygotes, people."""
