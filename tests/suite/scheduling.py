"""Hands the groups of tests to the workers of pytest-xdist in the order in which the workers sorted them.

pytest-xdist's own `--dist loadgroup` appends the group to each test's id, and with pytest 9.2 it silently ignores the
groups (pytest-xdist issue 1386). Here the workers, which collect, write the groups into a file, and the ids stay.

Tests that need their machine alone are one group. It goes to the last worker, after all others have ended.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.suite.order import ALONE


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a worker the next group when it has at most two tests left.

    A worker doesn't begin a test before it knows the next one, or that there is none. So a worker that waits for the
    end of the others has a test or two left, which it runs before those that need the machine alone.
    """

    def __init__(self, config: pytest.Config, log: Any, folder: Path) -> None:
        super().__init__(config, log)
        self._folder = folder
        self._groups: dict[str, str] = {}

    def schedule(self) -> None:
        """Begin, or go on after a worker was replaced. The workers have written the groups before they report."""
        if not self._groups:
            first = next(iter(self.registered_collections))
            self._groups = json.loads((self._folder / f"{first.gateway.id}.json").read_text())
        super().schedule()

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a worker that has ended or died; return the test during which it died, if it did.

        That test is not run again, as pytest-xdist would do it: a test that hangs would end one worker after another.
        """
        crashed: str | None = None
        for tests in self.assigned_work[node].values():
            for test, is_done in tests.items():
                if crashed is None and not is_done:
                    crashed, tests[test] = test, True
        super().remove_node(node)
        for remaining in self.nodes:
            self._reschedule(remaining)
        return crashed

    def _split_scope(self, nodeid: str) -> str:
        return self._groups[nodeid]

    def _reschedule(self, node: WorkerController) -> None:
        if self._must_wait():
            self._end_unless_first(node)
        else:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._must_wait():
            self._end_unless_first(node)
        else:
            super()._assign_work_unit(node)

    def _must_wait(self) -> bool:
        """Tell whether what is left needs the machine alone while there are several workers."""
        if ALONE in self.workqueue:
            # What a dead worker had left was put behind it.
            self.workqueue.move_to_end(ALONE)
        return list(self.workqueue) == [ALONE] and len(self.nodes) > 1

    def _end_unless_first(self, node: WorkerController) -> None:
        """End a worker once it has run what it has. The first one stays for the tests that are left."""
        if node is not self.nodes[0] and not node.shutting_down:
            node.shutdown()
