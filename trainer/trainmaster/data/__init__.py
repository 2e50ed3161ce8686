"""Data sources whose order is a pure function of (seed, samples consumed, slot of the batch)."""
