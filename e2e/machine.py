"""Our own cluster's machine room: what a person does with `python -m e2e.cluster`."""

from __future__ import annotations

import subprocess
import sys

from e2e.cluster.places import REPOSITORY


def cluster(*arguments: str) -> None:
    """Run the cluster's program. Fails the test with its own sentence."""
    done = subprocess.run(
        [sys.executable, "-m", "e2e.cluster", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AssertionError(f"e2e.cluster {' '.join(arguments)}: {done.stderr.strip()}")
