"""What a test of a cluster leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from e2e.installation import Installation
from e2e.kube import Kube, Object
from e2e.machine import Site
from e2e.world import World


class Stuck:
    """A cluster with a job that does not go."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def list(self, *_: Any) -> list[Object]:
        return [{"metadata": {"name": "job"}}]

    def delete(self, kind: str, *_: Any) -> None:
        self.deleted.append(kind)

    def wait(self, *_: Any) -> None:
        raise AssertionError("job: deleted: not within 60 s")


def test_a_namespace_goes_also_when_a_job_in_it_does_not(tmp_path: Path) -> None:
    kube = Stuck()
    world = World(cast(Kube, kube), cast(Installation, None), "t1-stuck", Site(tmp_path / "conf", tmp_path, None))
    world.folder.mkdir()
    with pytest.raises(AssertionError, match="not within 60 s"):
        world.close()
    assert kube.deleted == ["DistributedTrainingJob", "Namespace"]
    assert not world.folder.exists()
