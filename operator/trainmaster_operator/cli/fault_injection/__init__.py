"""Injected faults: how they are requested, and how they happen."""
