"""A run on one machine imports nothing that only a cluster needs, so that the trainer's image can do without it."""

from __future__ import annotations

import subprocess
import sys

import pytest

CLUSTER_ONLY = ("kopf", "kubernetes", "cryptography")

_PROBE = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {CLUSTER_ONLY!r}:
            raise ImportError(f"{{name}} is only for a cluster")
sys.meta_path.insert(0, Blocked())
from trainmaster_operator.cli import main; from trainmaster_operator.cli.job_files import validate_job as validate; from trainmaster_operator.cli.run import demo, local_run as local, run_job as run
from trainmaster_operator.local import local_operator as world
"""


@pytest.mark.processes
def test_a_run_on_one_machine_imports_nothing_that_only_a_cluster_needs() -> None:
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
