"""The same Kubernetes by kind: see `python -m e2e.kind --help`."""
