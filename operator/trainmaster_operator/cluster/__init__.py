"""The port `Cluster` and its adapters."""
