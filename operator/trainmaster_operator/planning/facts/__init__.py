"""What the policies read and return: the job's state, what was observed of it, and changes of it."""
