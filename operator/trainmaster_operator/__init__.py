"""Trainmaster's control plane. Never imports torch, never touches a job's storage."""
