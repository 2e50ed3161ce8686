"""Sums over replicas, whose gradients may be compressed, and exchanges between islands."""
