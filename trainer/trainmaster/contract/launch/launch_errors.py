"""The exception for a command line that is not run."""

from __future__ import annotations


class LaunchRefused(ValueError):
    """A command that ranks cannot run as a person wrote it. The message says what to write instead."""
