"""Code that runs inside a rank in addition to its script. Standard library only."""
