"""The I/O around the planner: queue, reconcile loop, lease, clock."""
