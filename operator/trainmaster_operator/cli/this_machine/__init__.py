"""What this machine has for a run: devices, a Python and the trainer."""
