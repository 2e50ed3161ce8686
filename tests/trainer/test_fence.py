from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.trainer.job import Job
from tests.trainer.ranks import Outcome, Ranks, fault_socket
from trainmaster.checkpoint.files import lineage
from trainmaster.checkpoint.files.storage import PosixStorage
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.host import processes
from trainmaster.rank.injected_faults import Fault, encode

pytestmark = pytest.mark.processes

STEPS = 12


def stopped_children(parent: int, count: int) -> list[int]:
    """Waits until so many children of a process are stopped; the kernel tells their parent, not us, so it is asked."""
    while True:
        stopped = [pid for pid in processes.children(parent) if processes.state(pid) == "T"]
        if len(stopped) == count:
            return stopped
        os.sched_yield()


def test_a_world_that_wakes_up_after_its_replacement_leaves_an_orphan_and_the_lineage_alone(
    ranks: Ranks, tmp_path: Path, text: Path
) -> None:
    parallelism = {"dpShard": 2}
    old_ranks = ranks.twin()
    shared = {environment.CHECKPOINT_DIR: str(tmp_path / "checkpoints")}
    old = Job(old_ranks, tmp_path / "old", text, parallelism=parallelism, steps=STEPS)
    new = Job(ranks, tmp_path / "new", text, parallelism=parallelism, steps=STEPS)
    faults = encode([Fault("stop", step=5, rank=0), Fault("stop", step=5, rank=1)])
    ended: list[Outcome] = []
    try:
        with fault_socket(tmp_path / "faults") as fired:
            how = shared | {environment.FAULTS: faults, environment.FAULT_SOCKET: str(tmp_path / "faults")}
            asleep = threading.Thread(target=lambda: ended.append(old.round(1, env=how, agent=True)))
            asleep.start()
            fired.wait(2)
            pids = stopped_children(old_ranks.pid, 2)
            replacement = new.round(2, env=shared, agent=True)
            assert replacement.codes == [0, 0], replacement.output
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            asleep.join()
    finally:
        old_ranks.close()

    (late,) = ended
    # It went on to train and to save, and was told that the storage is no longer its own.
    both = old.losses.keys() & new.losses.keys()
    assert max(both) > 5
    assert {step: old.losses[step] for step in both} == {step: new.losses[step] for step in both}
    results = [m["result"] for m in late.said("staged") if m["step"] > 3]
    assert results
    assert not any(result["committed"] for result in results), results
    assert set(late.codes) <= {0, int(ExitCode.FENCED)}, late.output

    storage = PosixStorage(tmp_path / "checkpoints")
    assert sorted(lineage.read_lineages(storage)) == [1, 2]
    # The newest on the chain is the new world's last, and what a third round would resume from.
    assert lineage.candidates(storage, 3, "job", "Auto")[0] == f"step-{STEPS}.r2"
    assert {name for name in lineage.candidates(storage, 3, "job", "Auto") if name.endswith(".r1")} <= {"step-3.r1"}
