"""What the operator does after a failure."""
