"""Jobs on this machine: what `trainmaster run` checks, starts and ends."""
