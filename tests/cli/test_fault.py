"""`trainmaster fault` against a cluster: whom it asks for what, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.jobs import job
from tests.cli.on_cluster import SPACE, Cluster, put, put_pod, update
from tests.cli.runs import status
from trainmaster_operator.cli.cluster_connection import Target
from trainmaster_operator.cli.fault_injection.inject_fault import break_things
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cluster.kubernetes_exec import Done
from trainmaster_operator.cluster.port import POD, Object
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.planning.facts.job_state import JobPhase


class World:
    """A job of four pods with one rank each. `able`: the pod whose agent can do what it is asked for."""

    def __init__(self, tmp_path: Path, able: int | None = None) -> None:
        self.able = able
        self.store = MemoryStore()
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(job(metadata__name="tiny")))
        self.job = put(self.store, file, now=status(roundMap="0-2,4"))
        for slot in range(5):
            put_pod(self.store, self.job, slot, incarnation=1)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.target = Target(Cluster(self.store), SPACE, None)  # type: ignore[arg-type]

    async def in_pod(self, pod: Object, words: list[str]) -> Done:
        assert words[0] == "fault"
        name = pod["metadata"]["name"]
        self.asked.append((name, json.loads(words[1])))
        if self.able is not None and not name.startswith(f"tiny-worker-{self.able}-"):
            return Done(1, "", "\x1b[2Jit isn't\rhere\n")
        return Done(0, "\x1b]0;title\x07done\n", "")

    def break_things(self, *texts: str) -> None:
        asyncio.run(break_things(self.target, "tiny", texts, self.in_pod))

    def refused(self, *texts: str) -> list[str]:
        with pytest.raises(Refusal) as refusal:
            self.break_things(*texts)
        return list(refusal.value.lines)


def test_the_pod_of_the_rank_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    world.break_things("kill:rank=3", "slow:rank=1,step=70,seconds=0.2")
    (first, one), (second, other) = world.asked
    assert (first, one["kind"], one["step"]) == ("tiny-worker-4-1", "kill", 0)
    assert (second, other["kind"], other["step"], other["seconds"]) == ("tiny-worker-1-1", "slow", 70, 0.2)
    assert capsys.readouterr().out == "kill:rank=3: done\nslow:rank=1,step=70,seconds=0.2: done\n"


def test_a_replaced_pod_is_left_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    put_pod(world.store, world.job, 1, incarnation=2)
    world.break_things("stop:rank=1")
    assert [name for name, _ in world.asked] == ["tiny-worker-1-2"]


def test_whoever_hosts_the_store_loses_it(tmp_path: Path) -> None:
    world = World(tmp_path, able=1)
    world.break_things("lose-store:rank=0")
    assert [name for name, _ in world.asked] == ["tiny-worker-0-1", "tiny-worker-1-1"]


def test_a_pod_is_killed_by_deleting_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.break_things("kill-pod:rank=2")
    meta = world.store.find(POD, SPACE, "tiny-worker-2-1")["metadata"]
    assert meta["deletionGracePeriodSeconds"] == 1
    assert world.asked == []


def test_an_agent_that_refuses_is_quoted(tmp_path: Path) -> None:
    assert World(tmp_path, able=0).refused("kill:rank=1") == ["tiny-worker-1-1: it isn't here"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kil:rank=1", "fault 'kil:rank=1': 'kil' is unknown; did you mean kill?"),
        ("kill:rank=9", "kill:rank=9: the job has ranks 0 to 3, not 9"),
        ("lose-node:rank=1", "fault lose-node:rank=1: a command cannot take a machine away"),
        ("api-outage", "fault api-outage: the API server does not belong to this job"),
        ("crash-operator", "fault crash-operator: only `trainmaster run` can count the operator's writes"),
        ("kill-operator", "fault kill-operator: the operator does not belong to this job"),
        ("kill-pod:step=80", "fault kill-pod:step=80: on a cluster, a pod can only be killed now"),
        (
            "kill:step=60",
            "fault kill:step=60: the job has completed step 60 already; give a later step, or no step",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is(tmp_path: Path, text: str, words: str) -> None:
    world = World(tmp_path)
    (line,) = world.refused("kill:rank=0", text)
    assert line.startswith(words)
    assert world.asked == []


@pytest.mark.parametrize("phase", [JobPhase.SUCCEEDED, JobPhase.FAILED])
def test_a_job_that_has_ended_cannot_be_broken(tmp_path: Path, phase: JobPhase) -> None:
    world = World(tmp_path)
    update(world.store, world.job, status(phase, roundMap="0-2,4"))
    (line,) = world.refused("kill:rank=1")
    assert line.startswith(f"{SPACE}/tiny: the job has ended ({phase.value}), so nothing in it can be broken")
    assert world.asked == []


def test_a_rank_without_a_pod_cannot_be_broken(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store.delete(POD, SPACE, "tiny-worker-4-1", grace_s=0)
    assert world.refused("kill:rank=3") == ["rank 3 has no running pod"]
