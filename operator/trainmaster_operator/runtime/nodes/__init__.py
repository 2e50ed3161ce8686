"""The nodes of the cluster: which are suspect, their taint, and signs of new ones."""
