"""What a test of a cluster leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from e2e.installation import Installation
from e2e.kube import JOB, Kube, Object
from e2e.machine import Site
from e2e.test_metrics import Scraper
from e2e.world import World


class Stuck:
    """A cluster in which nothing that is waited for comes, and that has a job."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def list(self, kind: str, *_: Any) -> list[Object]:
        return [{"metadata": {"name": "job"}}] if kind == JOB else []

    def delete(self, kind: str, *_: Any, **__: Any) -> None:
        self.deleted.append(kind)

    def create(self, _: Object) -> None:
        pass

    def wait(self, *_: Any) -> None:
        raise AssertionError("not within 60 s")


@pytest.fixture
def kube() -> Stuck:
    return Stuck()


@pytest.fixture
def world(kube: Stuck, tmp_path: Path) -> World:
    return World(cast(Kube, kube), cast(Installation, None), "t1-stuck", Site(tmp_path / "conf", tmp_path, None))


def test_a_namespace_goes_also_when_a_job_in_it_does_not(kube: Stuck, world: World) -> None:
    world.folder.mkdir()
    with pytest.raises(AssertionError, match="not within 60 s"):
        world.close()
    assert kube.deleted == [JOB, "Namespace"]
    assert not world.folder.exists()


def test_a_pod_that_was_to_fetch_metrics_goes_also_when_it_never_runs(kube: Stuck, world: World) -> None:
    with pytest.raises(AssertionError, match="not within 60 s"), Scraper(world):
        pass
    assert kube.deleted == ["Pod"]


def test_what_no_log_may_say_is_not_looked_for_where_there_is_no_log(world: World) -> None:
    with pytest.raises(AssertionError, match="job has no pod whose log could be read"):
        world.logs()
