"""What holds of the repository as a whole."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_folder_operator_never_shadows_the_standard_library() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    found = subprocess.run(
        [sys.executable, "-c", "import operator; print(operator.__file__)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ROOT not in Path(found.stdout.strip()).parents


def test_ci_runs_the_test_command_that_the_readme_names() -> None:
    assert "$ make test" in (ROOT / "README.md").read_text()
    phases = runpy.run_path(str(ROOT / ".ci" / "phases.py"))["PHASES"]
    assert ("make", "test") in [phase.command for phase in phases]
    assert "driver.py" in (ROOT / ".ci" / "run").read_text()
