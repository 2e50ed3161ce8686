"""Memory that a local run leaves behind would stay taken until the machine restarts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from trainmaster_operator.local import memory_volumes

HOLDER = """
import sys
from pathlib import Path
from trainmaster_operator.local import memory_volumes as local_memory
with local_memory.folder(Path(sys.argv[1])) as mine:
    (mine / "state").write_text("large")
    print(mine, flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_private_and_gone_at_the_end(tmp_path: Path) -> None:
    with memory_volumes.folder(tmp_path) as mine:
        assert mine is not None
        assert mine.stat().st_mode & 0o777 == 0o700
        (mine / "pod").mkdir()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_removed_and_what_a_living_one_has_stays(tmp_path: Path) -> None:
    foreign = tmp_path / "something-else"
    foreign.mkdir()
    run = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert run.stdin
    assert run.stdout
    theirs = Path(run.stdout.readline().strip())
    with memory_volumes.folder(tmp_path):
        assert (theirs / "state").exists()
    run.kill()
    run.wait()
    run.stdin.close()
    run.stdout.close()
    assert theirs.exists()
    with memory_volumes.folder(tmp_path):
        assert not theirs.exists()
    assert list(tmp_path.iterdir()) == [foreign]


def test_a_machine_without_a_tmpfs_has_no_memory_tier(tmp_path: Path) -> None:
    with memory_volumes.folder(tmp_path / "missing") as mine:
        assert mine is None
