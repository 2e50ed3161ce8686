"""A whole run that is watched and changed while it goes, as a person with `kubectl` does it to a job of a cluster."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.harness import LIMIT_S, Command, Outcome, command, started
from tests.stored import flat_status
from trainmaster_operator.cluster.port import JOB, Object, Unavailable
from trainmaster_operator.local.api_server.store_client import SocketCluster

LOOK_EVERY_S = 0.02  # for the run's start, of which nobody tells


class LiveRun:
    """`trainmaster run`, while it runs. Its job's `status` is read from the same store that its operator writes to."""

    def __init__(self, out: Path, process: Command, name: str, namespace: str) -> None:
        self.out, self.process = out, process
        self._name, self._namespace = name, namespace
        self._store_path: Path | None = None

    def status(self) -> Object:
        return flat_status(self._call(lambda store: store.get(JOB, self._namespace, self._name)).get("status"))

    def wait(self, until: Callable[[Object], Any], what: str) -> Any:
        """What `until(status)` says once it says something. A run that ends before fails the caller."""

        async def watched() -> Any:
            status: Object = {}
            try:
                async with asyncio.timeout(LIMIT_S), _store(self._socket()) as store:
                    async for event in store.watch(JOB, "0", self._namespace):
                        if event.object["metadata"].get("name") == self._name:
                            status = flat_status(event.object.get("status"))
                            if found := until(status):
                                return found
            except (TimeoutError, Unavailable) as error:
                raise AssertionError(f"never seen: {what}; status: {status}; {error!r}") from None
            raise AssertionError(f"the run ended before: {what}; status: {status}")

        return asyncio.run(watched())

    def wait_step(self, step: int) -> None:
        self.wait(lambda status: (status.get("progress") or {}).get("step", 0) >= step, f"step {step}")

    def patch(self, spec: Object) -> None:
        self._call(lambda store: store.patch(JOB, self._namespace, self._name, {"spec": spec}))

    def resize(self, size: int) -> None:
        """Ask for `size` pods and wait until they train."""
        self.patch({"workers": {"replicas": size}})

        def trains(status: Object) -> bool:
            return bool(status["phase"] == "Running" and status["workers"]["replicas"] == size)

        self.wait(trains, f"{size} pods train")

    def ended(self) -> Outcome:
        """Once it has ended by itself."""
        output, _ = self.process.communicate(timeout=LIMIT_S)
        return Outcome(self.out, self.process.wait(), output)

    def _call(self, work: Callable[[SocketCluster], Any]) -> Any:
        async def called() -> Any:
            async with _store(self._socket()) as store:
                return await work(store)

        return asyncio.run(called())

    def _socket(self) -> Path:
        """Of the store: the command listens on it. The kernel's table is read until it shows it, and no longer: it may
        leave out a socket while others come and go."""
        if self._store_path is None:
            try:
                descriptors = {os.readlink(path) for path in Path(f"/proc/{self.process.pid}/fd").iterdir()}
            except OSError:
                descriptors = set()
            for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
                words = line.split()
                if f"socket:[{words[6]}]" in descriptors and words[-1].endswith("/store.sock"):
                    self._store_path = Path(words[-1])
        assert self._store_path is not None, f"the run has ended, or never began: exit code {self.process.poll()}"
        return self._store_path


@asynccontextmanager
async def _store(path: Path) -> AsyncIterator[SocketCluster]:
    store = SocketCluster(path)
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def live(job: Path, out: Path, name: str, namespace: str = "default", faults: Sequence[str] = ()) -> Iterator[LiveRun]:
    """Start a run; whatever happens, nothing of it is left."""
    with started(command(job, out, faults)) as process:
        run = LiveRun(out, process, name, namespace)
        deadline = time.monotonic() + LIMIT_S
        while not (out / "status.yaml").exists() or not _answers(run):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, "the run doesn't begin"
            time.sleep(LOOK_EVERY_S)
        yield run


def _answers(run: LiveRun) -> bool:
    try:
        return bool(run.status())
    except (AssertionError, Unavailable):
        return False
