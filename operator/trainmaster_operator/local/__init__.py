"""What replaces Kubernetes in a local run: an API server in memory, and a kubelet that starts processes."""
