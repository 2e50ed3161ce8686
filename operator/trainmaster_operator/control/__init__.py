"""The HTTP channel that agents talk to, and the soft state of the fleet."""
