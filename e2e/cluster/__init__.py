"""A real Kubernetes of several nodes on one machine, from Go modules and Debian packages alone: no image registry.

A node is a set of Linux namespaces with a containerd, kubelet and kube-proxy of its own on a bridge; etcd and the
control plane run on the host. `python -m e2e.cluster --help` says what can be done with it.
"""
