"""What the README claims, and the commands that show it. `python -m claims --help` tells more."""
