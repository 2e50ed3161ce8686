"""Commands that create, restart and delete jobs on a cluster."""
