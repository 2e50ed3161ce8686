"""Files that several pods write at once: the agent, or a script, is process 1 in each of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tied

TRAINER = Path(__file__).parents[2] / "trainer"
WRITES = 60

WRITER = """
import os, sys
from pathlib import Path
from trainmaster.host import atomic_write as whole
from trainmaster.checkpoint.files.memory_tier import RamFolder
from trainmaster.checkpoint.files.storage import PosixStorage
from trainmaster.contract.config import MlflowConfig
from trainmaster.contract.wire import profile_request as recording
from trainmaster.loggers.mlflow import Mlflow

folder, mine, theirs, writes = Path(sys.argv[1]), *map(int, sys.argv[2:])
assert os.getpid() == 1, os.getpid()
storage, memory = PosixStorage(folder), RamFolder(folder / "memory", 1 << 20)
(folder / "memory" / "step-1.r1").mkdir(parents=True, exist_ok=True)
kinds = {
    "storage.write": lambda n: storage.write("manifest.json", [b"x" * 4096]),
    "storage.create_exclusive": lambda n: storage.create_exclusive(f"lineage-{n}", b"x" * 4096),
    "whole.write": lambda n: whole.write(folder / "micro.json", "x" * 4096),
    "recording.ask": lambda n: recording.ask(folder, 3),
    "ram.confirm": lambda n: memory.confirm(1, 1, 0, b"x" * 4096),
    "mlflow": lambda n: Mlflow(MlflowConfig(), folder, print, folder / f"run-{n}", {})._key(),
}
failures = []
for number in range(writes):
    for kind, write in kinds.items():
        os.write(theirs, b"x")
        os.read(mine, 1)
        try:
            write(number)
        except OSError as error:
            failures.append(f"{kind}: {error}")
print(len(failures), *failures[:5], sep="\\n")
"""


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace needs root")
def test_two_writers_with_the_same_process_id_do_not_disturb_each_other(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--pid", "--fork", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine doesn't let root make a pid namespace")
    (first, to_first), (second, to_second) = os.pipe(), os.pipe()
    writers = []
    for mine, theirs in ((first, to_second), (second, to_first)):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(mine), str(theirs), str(WRITES)]
        writers.append(
            tied.popen(
                ["unshare", "--pid", "--fork", "--kill-child", *command],
                pass_fds=[mine, theirs],
                env={**os.environ, "PYTHONPATH": str(TRAINER)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    for fd in (first, second, to_first, to_second):
        os.close(fd)
    told = [writer.communicate(timeout=60)[0] for writer in writers]
    assert [text.splitlines()[0] for text in told] == ["0", "0"], told
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def test_no_temporary_name_is_made_of_a_process_id_or_of_nothing() -> None:
    by_hand = re.compile(r"""with_name\([^)]*(getpid\(\)|\.part["']|\.tmp["'])""")
    found = {
        str(path.relative_to(TRAINER))
        for path in TRAINER.rglob("*.py")
        if by_hand.search(path.read_text(encoding="utf-8"))
    }
    assert found == set()
