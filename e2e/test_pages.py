"""The commands that README and docs show and that need a cluster: those with the mark `cluster`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cluster import images
from e2e.cluster.places import REPOSITORY
from e2e.test_faults import STEPPING
from e2e.world import PLAIN_TORCH, SMALL, World
from tests.docs.blocks import all_blocks

SMALLER = {
    "steps: 300": "steps: 40",
    'cpu: "1", memory: 2Gi': "cpu: {cpu}, memory: {memory}".format_map(SMALL["requests"]),
}
"""What is made smaller in the manifests of the pages: two cores carry the whole cluster."""

COLUMNS = ["NAME", "STATE", "STEP", "LOSS", "ETA", "WORKERS", "RESTARTS", "GOODPUT", "UPDATED", "AGE"]
WIDE = [*COLUMNS[:-2], "REASON", "UPDATED", "AGE"]


def shown() -> dict[str, list[list[str]]]:
    """The words of the commands that need a cluster, by page and in their order there."""
    found: dict[str, list[list[str]]] = {}
    for block in all_blocks():
        if block.page.startswith("docs/runbooks/"):
            continue  # e2e/test_runbooks.py makes an incident for each of these
        for command, _ in block.marked("cluster"):
            found.setdefault(block.page, []).append(command.words)
    return found


SHOWN = shown()


def prepare_jobs(world: World, page: str) -> None:
    """Jobs of three ranks that train, under the names that the page speaks of."""
    for _, _, name, *_ in SHOWN[page]:
        job = world.training(name, replicas=3, steps=2000, template={"terminationGracePeriodSeconds": 5})
        world.submit(job)
        world.wait_step(5, name)


def prepare_profiles(world: World, page: str) -> None:
    """A job of the built-in trainer, and one of a script, whose place torch takes here."""
    world.submit(world.training("my-gpt", replicas=3, steps=2000, template={"terminationGracePeriodSeconds": 5}))
    world.submit(world.script(["python3", "-c", STEPPING], "my-jax", replicas=1, image=PLAIN_TORCH))
    for name in ("my-gpt", "my-jax"):
        world.wait_step(5, name)


def prepare_one_job(world: World, page: str) -> None:
    """The job that all commands of the page ask for."""
    world.submit(world.training("cluster-gpt", steps=2000, template={"terminationGracePeriodSeconds": 5}))
    world.wait_step(5, "cluster-gpt")


def prepare_a_job_to_resize(world: World, page: str) -> None:
    """The job that the page makes smaller, and then suspends and resumes."""
    grace = {"terminationGracePeriodSeconds": 5}
    world.submit(world.training("my-gpt", replicas=3, steps=2000, mesh={"dpReplicate": 1}, template=grace))
    world.wait_step(5, "my-gpt")


def prepare_nothing(world: World, page: str) -> None:
    """What the fixtures have is enough: the chart is installed."""


PREPARATIONS: dict[str, Callable[[World, str], None]] = {
    "README.md": prepare_nothing,
    "charts/trainmaster/README.md": prepare_nothing,
    "docs/dashboards.md": prepare_nothing,
    "docs/editing.md": prepare_jobs,
    "docs/elastic.md": prepare_a_job_to_resize,
    "docs/faults.md": prepare_jobs,
    "docs/profiling.md": prepare_profiles,
    "docs/status.md": prepare_one_job,
}


def test_every_page_with_such_commands_has_its_preparation() -> None:
    assert set(PREPARATIONS) == set(SHOWN)


@pytest.mark.parametrize("page", SHOWN)
def test_the_commands_of_a_page_go_as_it_shows(world: World, page: str, tmp_path: Path) -> None:
    PREPARATIONS[page](world, page)
    for words in SHOWN[page]:
        run(world, words, tmp_path)


def run(world: World, words: list[str], folder: Path) -> None:
    """Run one command in the test's own namespace."""
    program, *arguments = words
    if "-n" in arguments:
        at = arguments.index("-n")
        arguments = arguments[:at] + arguments[at + 2 :]
    if program == "helm":
        # The chart is installed already, under this name: the API server is asked whether it would take it once more.
        images_of_nodes = str(images.write_values(folder))
        arguments = [images_of_nodes if word == "values-images.yaml" else here(word) for word in arguments]
        world.installation.helm(*arguments, "--dry-run=server")
    elif program == "trainmaster":
        arguments = [str(folder / word) if word == "traces" else word for word in arguments]
        assert world.trainmaster(*arguments), words
    elif arguments[0] == "apply":
        apply_smaller(world, arguments[-1], folder)
    else:
        everywhere = "--all-namespaces" in arguments
        where = [] if everywhere else ["-n", world.namespace]
        told = world.kube.kubectl(*[word for word in arguments if word != "--watch"], *where)  # that would never end
        if arguments[0] == "get" and not everywhere:
            assert told.splitlines()[0].split() == (WIDE if "wide" in arguments else COLUMNS)


def apply_smaller(world: World, manifest: str, folder: Path) -> None:
    """Apply one of the repository's jobs, made smaller, and wait until it has done a step."""
    file = folder / Path(manifest).name
    text = (REPOSITORY / manifest).read_text()
    for large, small in SMALLER.items():
        assert large in text, large
        text = text.replace(large, small)
    file.write_text(text)
    world.kube.kubectl("apply", "-n", world.namespace, "-f", str(file))
    world.wait_step(1, file.stem)


def here(word: str) -> str:
    """A path of the repository, for a command that runs elsewhere."""
    return str(REPOSITORY / word) if word.startswith("charts/") else word
