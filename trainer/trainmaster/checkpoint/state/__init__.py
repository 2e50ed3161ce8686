"""Checkpoints as states of a training: capture, save, load, resume."""
