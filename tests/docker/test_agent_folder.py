"""The folder that brings the agent into a user's own image."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

# Runs the folder as `python FOLDER` does, then says which modules came, and what the path has become.
_PROBE = """
import json, sys
folder = sys.argv[1]
sys.path.insert(0, folder)
sys.argv = [folder]
try:
    exec(open(f"{folder}/__main__.py").read(), {"__name__": "__main__"})
except SystemExit as stop:
    modules = sorted({name.split(".")[0] for name in sys.modules})
    print(json.dumps({"path": sys.path, "modules": modules}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "opt" / "trainmaster"
    subprocess.run([sys.executable, "docker/agent_folder.py", str(target)], cwd=REPOSITORY, check=True)
    return target


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    bare = [sys.executable, "-I", "-S", *words, str(folder)]  # neither site-packages nor anything of the environment
    return subprocess.run(bare, env={}, cwd="/", capture_output=True, text=True, check=False)


def test_the_folder_is_the_agent_for_a_python_that_has_nothing_installed(folder: Path) -> None:
    done = run(folder)
    assert done.returncode == 2, done.stderr
    assert "TRAINMASTER_JOB_UID is not set" in done.stderr


def test_the_agent_imports_the_standard_library_alone(folder: Path) -> None:
    done = run(folder, "-c", _PROBE)
    said = json.loads(done.stdout)
    # `sysconfig` keeps its facts in a module whose name says for which system Python was built.
    modules = {name for name in said["modules"] if not name.startswith("_sysconfigdata_")}
    assert modules <= {*sys.stdlib_module_names, "trainmaster", "__main__", "__mp_main__"}


def test_the_folder_is_not_left_on_the_path_of_what_the_agent_starts(folder: Path) -> None:
    said = json.loads(run(folder, "-c", _PROBE).stdout)
    assert str(folder) not in said["path"]
