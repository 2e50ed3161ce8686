"""What the policies read and return: the state of the job, what was observed, and changes of the state."""
