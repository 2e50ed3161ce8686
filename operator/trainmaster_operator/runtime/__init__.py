"""The shell around the planner: queue, reconcile loop, lease, clock."""
