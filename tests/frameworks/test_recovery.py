"""Each framework loses a rank, hangs and loses a pod. It goes on from its own checkpoint, and ends as a calm run."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests import tied
from tests.frameworks.runs import SMOKE, SUBJECTS, Ended, run
from trainmaster.contract.wire import profile_request
from trainmaster.rank.step_recording import CUT_OFF

# Tests of the same example use its undisturbed run, so they run one after another.
pytestmark = [pytest.mark.framework, pytest.mark.processes, pytest.mark.together]

Calm = Callable[[str], Ended]

EVEN_S = 0.2
"""A pause after each step that is long compared with what a save takes: the limit for ranks that hang is soon short."""

HANG_LIMIT_S = 60
"""The limit of a start, which takes long on a busy machine. Once the run knows its steps, a stopped rank hangs after a
fifth of it."""


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """An undisturbed run of each subject, made once."""

    @cache
    def run_calm(name: str) -> Ended:
        # Nothing is started again, so that nothing needs to be imported in advance.
        return run(SUBJECTS[name], tmp_path_factory.mktemp(f"calm-{name}"), pause_s=0, recovery={"zygote": False})

    return run_calm


def is_by_hang(ended: Ended, number: int) -> bool:
    """Return True if a recovery was because of a hang. TensorFlow ends its ranks when one has been silent for ten
    seconds, and Horovod after thirty. On a busy machine that can come first."""
    status = ended.status
    failure = status["lastFailure"]
    by_tensorflow = "stopped sending heartbeats" in failure["message"] + failure.get("traceback", "")
    by_horovod = "Timed out waiting 30000ms" in ended.log
    return status["recoveries"][number]["cause"] == "Hang" or by_tensorflow or by_horovod


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.smoke) if name in SMOKE else name for name in SUBJECTS]
)
def test_a_killed_and_then_a_stopped_rank_are_back_and_the_run_ends_as_if_nothing_had_happened(
    tmp_path: Path, calm: Calm, name: str
) -> None:
    subject = SUBJECTS[name]
    undisturbed = calm(name)  # first: what DeepSpeed compiles in its first run on a machine has no limit here
    assert undisturbed.exit_code == 0, undisturbed.output
    faults = ["kill:rank=1,step=33", "stop:rank=1,step=47"]
    ended = run(subject, tmp_path, faults, pause_s=EVEN_S, recovery={"hang": {"limitSeconds": HANG_LIMIT_S}})
    assert ended.exit_code == 0, ended.output
    recoveries = ended.status["recoveries"]
    assert len(recoveries) == 2, recoveries
    killed, stopped = recoveries
    assert (killed["cause"], killed["rung"], killed["resumedStep"]) == ("Crash", "inPlace", subject.saved_before(33))
    assert stopped["resumedStep"] == subject.saved_before(47)
    assert is_by_hang(ended, 1), ended.status["lastFailure"]
    for recovery in (killed, stopped):
        times = ended.log.count(f"resumed at step {recovery['resumedStep']}")
        assert times in (0, 2), "both ranks, where the script says so"
    assert ended.status["progress"]["step"] == subject.end
    assert len(ended.pids) == 6, "two ranks, three times"
    assert [pid for _, pid in ended.pids if tied.is_alive(pid)] == []
    assert ended.final_losses == undisturbed.final_losses != set()


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_lost_pod_is_replaced_and_the_run_ends_as_if_nothing_had_happened(
    tmp_path: Path, calm: Calm, name: str
) -> None:
    subject = SUBJECTS[name]
    ended = run(subject, tmp_path, ["kill-pod:rank=1,step=33"])
    assert ended.exit_code == 0, ended.output
    (recovery,) = ended.status["recoveries"]
    assert (recovery["resumedStep"], recovery["rung"]) == (subject.saved_before(33), "pod")
    assert ended.status["progress"]["step"] == subject.end
    assert [pid for _, pid in ended.pids if tied.is_alive(pid)] == []
    assert ended.final_losses == calm(name).final_losses != set()


@pytest.mark.parametrize("name", [name for name in SUBJECTS if name != "xgboost"])
def test_every_rank_records_steps_with_its_frameworks_profiler_and_no_number_changes(
    tmp_path: Path, calm: Calm, name: str
) -> None:
    out = tmp_path / "out"
    # A run of half a minute, so that the command is there before the last steps.
    ended = run(SUBJECTS[name], tmp_path, pause_s=0.5, meanwhile=["profile", str(out), "--steps", "2"])
    assert ended.exit_code == 0, ended.output
    assert ended.final_losses == calm(name).final_losses != set()
    assert not (out / profile_request.FILE).exists()
    if SUBJECTS[name].framework == "TensorFlow" and ended.status.get("recoveries"):
        assert CUT_OFF in ended.log
        pytest.xfail("TensorFlow's profiler has crashed a rank, as it does without Trainmaster")
    assert f"every rank will record its next 2 steps; the records will be in {out}/profile" in ended.output
    (folder,) = (out / "profile").iterdir()
    assert f"has written its records into {folder}" in ended.log
    if SUBJECTS[name].environment in ("tensorflow", "jax", "horovod-tensorflow"):
        found = sorted(folder.rglob("*.xplane.pb"))
        assert [path.name for path in found] == ["rank-00000.xplane.pb", "rank-00001.xplane.pb"]
        assert all(path.parent == folder / "plugins" / "profile" / folder.name for path in found)
        assert all(b"/host:CPU" in path.read_bytes() for path in found)
    else:
        found = sorted(folder.glob("*.pt.trace.json.gz"))
        assert [path.name.split(".")[0] for path in found] == ["rank-00000", "rank-00001"]
        for path in found:
            with gzip.open(path, "rt") as file:
                events = json.load(file)["traceEvents"]
            assert len({event["name"] for event in events if "ProfilerStep#" in event.get("name", "")}) == 2
