"""What this machine provides for a run: devices, a Python and the trainer."""
