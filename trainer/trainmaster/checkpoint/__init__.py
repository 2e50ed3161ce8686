"""Checkpoints: their files, storage and uploads (`files`, standard library only), and their content (`state`,
torch)."""
