"""What the operator does about a failure."""
