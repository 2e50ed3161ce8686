"""The worlds without Kubernetes: an API server in memory, and a kubelet that starts processes."""
