"""Parts of one pass over a job, which reconcile.py calls."""
