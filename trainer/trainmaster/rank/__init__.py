"""What runs inside a rank besides its script. Standard library only."""
