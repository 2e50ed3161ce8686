"""Sums of gradients: over replicas that don't send all of them, and between islands."""
