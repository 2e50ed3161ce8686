"""Schedules of faults: made, run, checked and made smaller."""
