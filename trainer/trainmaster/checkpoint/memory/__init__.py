"""Checkpoints of a rank in the memory of pods: when, how, and which copy is nearest."""
