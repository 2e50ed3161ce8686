"""What a rank of our own loop does when a peer has died: save, complete the step, and wait for its end."""
