"""The stages of a pipeline: which blocks each stage gets, and their schedule."""
