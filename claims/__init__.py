"""What README and docs claim, and the commands that show it. `python -m claims --help` tells more."""
