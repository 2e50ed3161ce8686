"""What the operator reports to people and to Prometheus: events, metrics and health."""
