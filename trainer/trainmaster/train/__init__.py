"""The training loops, our own and those of scripts, and what happens around a step."""
