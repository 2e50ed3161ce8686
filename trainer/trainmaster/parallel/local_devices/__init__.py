"""Parallelism over several devices of one process."""
