"""Jobs on a cluster: the connection to it, and commands that change something there."""
