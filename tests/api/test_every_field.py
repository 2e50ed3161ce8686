"""Each field of a job but those of `training` changes the pod, what agents are told, or what is decided.

A row is looked at twice, without and with its value. What shows in a longer story only has a test of that story:
`ELSEWHERE`. The fields of `training`: tests/trainer/test_every_field.py. What can't have an effect is refused:
tests/api/test_unused.py.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from tests.api.jobs import PYTORCH, TRAINMASTER, job
from tests.manifests.pods import build_pod
from tests.manifests.test_golden import CLUSTER
from tests.planning.test_pending import waiting
from tests.planning.world import World, running, verdict
from trainmaster_operator.api.job_spec import DistributedTrainingJob, JobSpec
from trainmaster_operator.api.validation.job_validation import validate
from trainmaster_operator.api.validation.partial_model import model_in
from trainmaster_operator.planning.facts.view import look
from trainmaster_operator.planning.liveness.hang_thresholds import Limits
from trainmaster_operator.planning.rounds.directives import directive

TESTS = Path(__file__).parents[1]
OPERATOR = TESTS.parent / "operator" / "trainmaster_operator"


def leaves(model: type[BaseModel] = JobSpec, above: tuple[str, ...] = ()) -> Iterator[str]:
    for name, known in model.model_fields.items():
        path = (*above, known.alias or name)
        child = model_in(known.annotation)
        if path == ("training",):
            continue
        if child is not None:
            yield from leaves(child, path)
        else:
            yield ".".join(path)


def pod(document: dict[str, Any]) -> Any:
    """A pod of the job on a cluster."""
    return build_pod(DistributedTrainingJob.model_validate(document), "worker", 0, 0, CLUSTER)


def told(document: dict[str, Any]) -> Any:
    """What an agent is told while the job trains."""
    world = running(_spec(document))
    return directive(world.spec, world.status, world.observed(), 0)


def begun(document: dict[str, Any]) -> Any:
    """Which pods the job begins with."""
    world = World(_spec(document))
    return world.settle().create, world.status.phase


def waited(document: dict[str, Any]) -> Any:
    """What is decided of a job two of whose pods find no place for 100 s."""
    world = waiting(_spec(document), slots=(2, 3), reason="Unschedulable", message="no room")
    for slot in (0, 1):
        world.agent(slot)
    world.settle()
    world.now += 100
    decision = world.plan()
    return decision.status.phase, decision.requeue_after_s, decision.delete


def silent(document: dict[str, Any]) -> Any:
    """What is decided of a job that trains and has lost an agent, 10 s later."""
    world = running(_spec(document))
    del world.agents[1]
    world.pod(1, running_s=10.0)
    world.leading_s = 10.0
    world.now += 10
    decision = world.plan()
    return decision.status.phase, decision.requeue_after_s, decision.events


def limited(document: dict[str, Any]) -> Any:
    """For how long ranks of uneven steps may be silent."""
    world = running(_spec(document))
    for slot in world.slots:
        world.agent(slot, pauses={"step": [100, 20, 20, 0]})
    view = look(world.spec, world.status, world.observed(), world.now)
    return Limits(view).of(world.agents[0], world.ranks(0)[0])


def waited_for(document: dict[str, Any]) -> Any:
    """Which rank is a straggler: one that computes twice as long as the others, which wait for it."""
    world = running(_spec(document), step=10)
    for waits in (1.0, 2.0):
        world.now += 10
        for slot in world.slots:
            took, idle = (2.0, 0.02) if slot == 2 else (2.0, waits)
            world.agent(slot, ranks=world.ranks(slot, step=12, step_seconds=took, wait_seconds=min(idle, 1.0)))
        world.write()
    return world.status.straggler


def failed(document: dict[str, Any]) -> Any:
    """What a job does about the same rank that crashes three times, 50 s after each other, without a step between."""
    world = running(_spec(document))
    done = []
    for _ in range(3):
        world.agent(2, verdict=verdict(2, round=world.status.round, exit_code=7))
        decision = world.write()
        done.append((world.status.phase, decision.events))
        if world.status.phase.finished:
            break
        world.settle()
        for slot in world.slots:
            world.pod(slot)
            world.agent(slot)
        world.settle()
        for slot in world.slots:
            world.obey(slot)
        world.settle()
        world.now += 50
    return done


def done(document: dict[str, Any]) -> Any:
    """What becomes of a job's pods, and of itself, once it is done."""
    world = running(_spec(document))
    for slot in world.slots:
        world.agent(slot, done=True)
    world.write()
    world.agents = {}
    world.pod(1, phase="Succeeded")
    world.now += 100
    decision = world.plan()
    return decision.delete, decision.delete_job, decision.requeue_after_s


@dataclass(frozen=True)
class Row:
    """A field, a value that isn't the one that it has without it, and where that shows. given: changes of the job that
    both have."""

    name: str
    value: Any
    shows: Callable[[dict[str, Any]], Any]
    given: dict[str, Any] = field(default_factory=dict)
    base: dict[str, Any] = field(default_factory=lambda: TRAINMASTER)


STORED = {"spec__checkpoint": {"directory": "/data/run"}}
EVALUATED = {"spec__training__evaluation": {"every": 5, "data": {"path": "/data/texts"}}}
IN_PLACE = {"spec__recovery": {"budget": {"inPlace": 0}}}
POD = {"spec__recovery": {"budget": {"inPlace": 0, "pod": 0}}}
ONCE = {"spec__recovery": {"budget": {"inPlace": 1}}}


def rule(**more: Any) -> list[dict[str, Any]]:
    return [{"action": "Hold", **more}]


HELD = {"spec__recovery": {"rules": rule()}}

ROWS = [
    Row("framework", "PyTorch", pod),
    Row("workers.replicas", 8, begun, {"spec__training__parallelism": {}}),
    Row("workers.spares", 1, begun),
    Row("workers.ranksPerPod", 2, told, {"spec__training__parallelism": {}}),
    Row("workers.pinning", True, pod),
    Row("workers.sharedMemory", "3Gi", pod),
    Row("workers.restartCommand", ["python", "again.py"], pod, {}, PYTORCH),
    Row("workers.template", {"metadata": {"labels": {"mine": "yes"}}}, pod),
    Row("checkpoint.every", 7, pod, STORED),
    Row("checkpoint.keep", 1, pod, STORED),
    Row("checkpoint.keepBest", True, pod, {**STORED, **EVALUATED}),
    Row("checkpoint.resume", "/data/other/step-7", told, STORED),
    Row("checkpoint.directory", "/data/run", pod),
    Row("checkpoint.volume.claim", "a", pod),
    Row("checkpoint.volume.hostPath", "/mnt/a", pod),
    Row("checkpoint.timeoutSeconds", 60, pod, STORED),
    Row("checkpoint.ram.every", 3, pod, STORED),
    Row("checkpoint.ram.limit", "3Gi", pod, STORED),
    Row("recovery.rules.action", "Fail", failed, HELD),
    Row("recovery.rules.name", "mine", failed, HELD),
    Row("recovery.rules.causes", ["Hang"], failed, HELD),
    Row("recovery.rules.exitCodes", [9], failed, HELD),
    Row("recovery.rules.message", "it burnt", failed, HELD),
    Row("recovery.budget.inPlace", 0, failed),
    Row("recovery.budget.pod", 0, failed, IN_PLACE),
    Row("recovery.budget.full", 0, failed, POD),
    Row("recovery.budget.windowSeconds", 10, failed, ONCE),
    Row("recovery.budget.perCause", 1, failed),
    Row("recovery.hang.limitSeconds", 50, told),
    Row("recovery.hang.mode", "Off", told),
    Row("recovery.hang.factor", 4, limited),
    Row("recovery.straggler.slowdown", 5, waited_for),
    Row("recovery.zygote", False, pod),
    Row("recovery.agentLostSeconds", 5, silent),
    Row("scheduling.releaseSeconds", 60, waited),
    Row("suspend", True, begun),
    Row("activeDeadlineSeconds", 60, waited),
    Row("pendingDeadlineSeconds", 60, waited),
    Row("cleanPodPolicy", "All", done),
    Row("ttlSecondsAfterFinished", 60, done),
]


class Story(NamedTuple):
    """Where a field is obeyed (a file of the operator), and which test shows it."""

    obeyed: str
    file: str
    test: str


ELSEWHERE = {
    "workers.min": Story(
        "planning/rounds/allowed_sizes.py",
        "planning/test_elastic.py",
        "test_a_job_never_shrinks_below_its_minimum_or_to_an_illegal_size",
    ),
    "workers.max": Story(
        "planning/rounds/allowed_sizes.py",
        "planning/test_sizes.py",
        "test_a_script_may_have_any_size_within_its_bounds_and_none_but_its_own_without",
    ),
    "checkpoint.ram.peers": Story(
        "api/memory_tier_spec.py", "planning/test_peers.py", "test_without_a_reason_nobody_keeps_copies"
    ),
    "recovery.straggler.windowSeconds": Story(
        "planning/liveness/straggler.py",
        "planning/test_straggler.py",
        "test_a_rank_that_the_others_wait_for_all_along_is_named_once",
    ),
    "recovery.straggler.action": Story(
        "planning/liveness/straggler.py", "planning/test_straggler.py", "test_its_pod_is_replaced_where_that_is_wanted"
    ),
    "recovery.elastic.waitSeconds": Story(
        "planning/rounds/allowed_sizes.py",
        "planning/test_elastic.py",
        "test_some_of_the_new_pods_will_do_when_the_others_do_not_come",
    ),
    "recovery.elastic.cooldownSeconds": Story(
        "planning/rounds/allowed_sizes.py", "planning/test_elastic.py", "test_it_takes_the_pod_back_after_the_cooldown"
    ),
    "recovery.nodes.avoid": Story(
        "planning/placement/avoided_nodes.py", "planning/test_nodes.py", "test_a_job_may_want_none_of_this"
    ),
    "restart": Story(
        "planning/lifecycle/revision.py",
        "planning/test_revision.py",
        "test_a_restart_that_a_person_asks_for_saves_first_and_then_begins_a_run",
    ),
    "managedBy": Story(
        "runtime/cache/cache_records.py", "runtime/test_reconcile.py", "test_a_job_of_another_controller_is_left_alone"
    ),
}


def _spec(document: dict[str, Any]) -> JobSpec:
    return DistributedTrainingJob.model_validate(document).spec


def with_value(document: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """The job with a field at this value; in each rule of a list of rules."""
    changed = copy.deepcopy(document)
    places = [changed["spec"]]
    *above, last = name.split(".")
    for part in above:
        found = [place.setdefault(part, {}) for place in places]
        places = [one for each in found for one in (each if isinstance(each, list) else [each])]
    for place in places:
        place[last] = value
    if name == "framework":
        del changed["spec"]["training"]  # It belongs to framework Trainmaster alone, as a command belongs to scripts.
        changed["spec"]["workers"]["template"] = PYTORCH["spec"]["workers"]["template"]
    return changed


def test_each_field_has_a_row_or_a_story_and_only_one() -> None:
    assert sorted([*(row.name for row in ROWS), *ELSEWHERE]) == sorted(leaves())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_field_changes_what_it_is_for(row: Row) -> None:
    before = job(row.base, **row.given)
    after = with_value(before, row.name, row.value)
    assert [str(problem) for document in (before, after) for problem in validate(document)] == []
    assert row.shows(before) == row.shows(before), "else the next line could not fail"
    assert row.shows(before) != row.shows(after)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_a_story_shows_is_obeyed_where_it_says(name: str) -> None:
    story = ELSEWHERE[name]
    last = name.rpartition(".")[2]
    # As an attribute or a key of the spec: the bare word may stand in any docstring.
    assert re.search(rf'[."]{last}\b', (OPERATOR / story.obeyed).read_text())
    tree = ast.parse((TESTS / story.file).read_text())
    assert story.test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
