"""What becomes of the saves of ranks: uploads to storage, and copies for peers."""
