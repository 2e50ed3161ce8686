"""Measurements of a training: held-out loss, divergence, noise scale, utilization and memory; and its log."""
