"""The training loops, ours and a script's own, and what happens around a step."""
