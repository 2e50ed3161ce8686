"""Which pods there should be, on which nodes, and what to do when they cannot start."""
