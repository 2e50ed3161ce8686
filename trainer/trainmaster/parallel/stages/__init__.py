"""Stages of a pipeline: which blocks each gets, and their schedule."""
