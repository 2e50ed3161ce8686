"""The virtual world in which the operator runs: its agents, kubelet, ranks and storage."""
