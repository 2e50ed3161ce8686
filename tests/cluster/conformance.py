"""What every `Cluster` must do, as scenarios over any adapter: the same against the store and a real API server."""

from __future__ import annotations

from tests.cluster import conformance_changes, conformance_objects
from tests.cluster.scenario import SCENARIOS, Scenario, World

__all__ = ["SCENARIOS", "Scenario", "World", "conformance_changes", "conformance_objects"]
