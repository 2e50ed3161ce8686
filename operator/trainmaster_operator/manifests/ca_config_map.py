"""The certificates by which agents recognise the operator: one ConfigMap for all jobs of a namespace."""

from __future__ import annotations

from trainmaster_operator.manifests.keyed_lists import Object

CA_NAME = "trainmaster-ca"  # A ConfigMap in each namespace with jobs.
CA_KEY = "ca.crt"


def build_ca_bundle(namespace: str, bundle: str) -> Object:
    """Return the ConfigMap. `bundle`: PEM, the current and the previous certificate. No job owns it, so it stays
    when a job is deleted."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": CA_NAME,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "trainmaster"},
        },
        "data": {CA_KEY: bundle},
    }
