"""What ranks have saved: uploads to storage, copies for peers."""
