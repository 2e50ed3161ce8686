"""The API server of a local run: a store in memory, what it refuses, and its socket."""
