"""Checkpoints: storage, lineage, upload (standard library only), save and load (torch)."""
