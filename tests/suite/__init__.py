"""The test suite as a whole: which tests a change can reach, in which order they run, and what each of them costs."""
