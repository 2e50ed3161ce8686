"""Recorded steps: of which rank the time of a step went where, as traces and one page."""
