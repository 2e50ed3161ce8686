"""Faults on purpose: how they are asked for, and how they strike."""
