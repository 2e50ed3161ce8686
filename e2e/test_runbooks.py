"""Every command of every runbook, on a cluster with the incident that the page is about, and what the page shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e.cluster.shell import until
from e2e.installation import NAMESPACE
from e2e.machine import Machine
from e2e.test_nodes import on_a_losable_node, spread
from e2e.world import SMALL, World
from tests.docs.blocks import all_blocks
from tests.docs.matching import differences

FOLDER = "docs/runbooks/"
JOB, TEAM = "my-gpt", "team-a"
"""What the pages call the job and its namespace."""

Incident = Callable[[World], None]


def shown() -> dict[str, list[tuple[list[str], tuple[str, ...]]]]:
    """The commands of each runbook in their order, with the output that the page shows."""
    found: dict[str, list[tuple[list[str], tuple[str, ...]]]] = {}
    for block in all_blocks():
        if block.page.startswith(FOLDER):
            commands = [(command.words, command.output) for command, _ in block.marked("cluster")]
            found.setdefault(block.page.removeprefix(FOLDER).removesuffix(".md"), []).extend(commands)
    return found


SHOWN = shown()


def fail(world: World) -> None:
    world.submit(world.script(["python3", "-c", "import sys; sys.exit(91)"], name=JOB))
    world.wait_phase("Failed", name=JOB)
    world.kube.wait_event("Failed", JOB, world.namespace)


def hold(world: World) -> None:
    rules = {"rules": [{"causes": ["DataError"], "action": "Hold"}]}
    world.submit(world.script(["python3", "-c", "import sys; sys.exit(91)"], name=JOB, recovery=rules))
    world.wait_phase("Held", name=JOB)


def ask_for_too_much(world: World) -> None:
    job = world.training(JOB)
    (container,) = job["spec"]["workers"]["template"]["spec"]["containers"]
    container["resources"] = {"requests": {"cpu": "1000"}}
    world.submit(job)
    world.wait(lambda status: "Unschedulable" in str(status.get("conditions")), "it is unschedulable", JOB)


def hang(world: World) -> None:
    hang = {"hang": {"mode": "Notify", "limitSeconds": 5}}
    world.submit(world.training(JOB, steps=100_000, recovery=hang))
    world.wait_step(20, JOB)
    world.trainmaster("fault", JOB, "stop:rank=1")
    world.wait(lambda status: (status.get("suspicion") or {}).get("confirmed"), "the hang is confirmed", JOB)


def crash(world: World) -> None:
    world.submit(world.training(JOB, steps=100_000))
    world.wait_step(20, JOB)
    world.trainmaster("fault", JOB, "kill:rank=1")
    world.wait(
        lambda status: (status.get("lost") or {}).get("Crash") and status["phase"] == "Running", "it is back", JOB
    )


def fill_the_disk(world: World) -> None:
    world.submit(world.training(JOB, steps=100_000, every=10))
    world.wait(lambda status: status.get("checkpoint"), "a checkpoint", JOB)
    world.trainmaster("fault", JOB, "fill-disk:rank=0,seconds=60")
    world.kube.wait_event("CheckpointFailed", JOB, world.namespace, 60.0)


def slow_one_down(world: World) -> None:
    straggler = {"straggler": {"windowSeconds": 5}}
    world.submit(world.training(JOB, steps=100_000, recovery=straggler))
    world.wait_step(20, JOB)
    world.trainmaster("fault", JOB, "slow:rank=1,seconds=0.5,steps=500")
    world.wait(lambda status: (status.get("straggler") or {}).get("told"), "a straggler", JOB)


def limit_memory(world: World) -> None:
    job = world.training(JOB, steps=100_000)
    (container,) = job["spec"]["workers"]["template"]["spec"]["containers"]
    container["resources"] = {**SMALL, "limits": {"memory": "1Gi"}}
    world.submit(job)
    world.wait_step(20, JOB)


def train(world: World) -> None:
    world.submit(world.training(JOB, steps=100_000))
    world.wait_step(20, JOB)


def nothing(world: World) -> None:
    """The commands look at what is always there."""


INCIDENTS: dict[str, Incident] = {
    "agents-lost": train,
    "certificate-expiring": nothing,
    "job-checkpoint-old": fill_the_disk,
    "job-failed": fail,
    "job-goodput-low": crash,
    "job-held": hold,
    "job-memory-full": limit_memory,
    "job-no-progress": hang,
    "job-pending": ask_for_too_much,
    "job-straggler": slow_one_down,
    "operator-down": lambda world: world.installation.scale(0),
    "operator-errors": train,
    "operator-slow": nothing,
}
MOVES_THE_OPERATOR = {"certificate-expiring", "operator-down", "operator-slow"}


def test_every_runbook_has_its_incident_and_commands() -> None:
    assert set(INCIDENTS) == set(SHOWN)
    assert [page for page, commands in SHOWN.items() if not commands] == []


@pytest.mark.parametrize("page", [page for page in SHOWN if page not in MOVES_THE_OPERATOR])
def test_the_commands_of_a_runbook_show_what_the_page_shows(world: World, page: str) -> None:
    follow(world, page)


@pytest.mark.exclusive
@pytest.mark.parametrize("page", sorted(MOVES_THE_OPERATOR))
def test_the_commands_of_a_runbook_bring_the_operator_back(world: World, page: str) -> None:
    world.installation.wait_old_ended()
    try:
        follow(world, page)
    finally:
        world.kube.scale("trainmaster-operator", NAMESPACE, 2)
        world.installation.wait_ready()


def follow(world: World, page: str) -> None:
    """Make the incident, then give the page's commands in their order."""
    INCIDENTS[page](world)
    for words, output in SHOWN[page]:
        said = give(world, [word.replace(TEAM, world.namespace) for word in words])
        expected = [line.replace(TEAM, world.namespace) for line in output]
        wrong = differences(expected, said, exact=False)
        assert not wrong, f"docs/runbooks/{page}.md: `{' '.join(words)}` says something else:\n{wrong}"


def give(world: World, words: list[str]) -> str:
    program, *arguments = words
    if program == "kubectl":
        return world.kube.kubectl(*arguments)
    assert program == "trainmaster", words
    at = arguments.index("-n")
    return world.trainmaster(*arguments[:at], *arguments[at + 2 :])  # the namespace is given by the world


@pytest.mark.exclusive
def test_the_runbook_of_lost_agents_finds_the_lost_node(world: World, machine: Machine) -> None:
    """The node that was lost is the one that its first command calls NotReady."""
    world.submit(spread(world, machine, steps=300))
    world.wait_step(30)
    slot = on_a_losable_node(world, machine)
    node = world.node_of(world.pod(slot))
    machine.lose(node)
    try:
        world.kube.wait("Node", node, "", not_ready, f"{node} is not Ready", 120)
        (first, *_) = SHOWN["agents-lost"]

        def is_named() -> bool:
            lines = give(world, first[0]).splitlines()
            return [line.split()[0] for line in lines if "NotReady" in line] == [node]

        # A machine that stands still for ten seconds makes all its nodes NotReady for a moment.
        until(is_named, 60, f"the runbook's first command does not name {node}, and it alone, as NotReady")
        world.succeeded(limit_s=240)
    finally:
        machine.heal(node)


def not_ready(node: dict[str, object] | None) -> bool:
    status = (node or {}).get("status") or {}
    assert isinstance(status, dict)
    found = [c for c in status.get("conditions", []) if c["type"] == "Ready"]
    return bool(found) and found[0]["status"] != "True"
