"""The `trainmaster` command."""
