"""Models that know nothing of parallelism."""
