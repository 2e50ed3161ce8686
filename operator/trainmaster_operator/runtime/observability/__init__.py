"""What the operator tells people and Prometheus: events, metrics and health."""
