"""What can go wrong in a virtual world."""
