"""`trainmaster logs NAME`: what the ranks of a job on a cluster print, ordered by time.

The logs of replaced pods are read too, while these pods still exist.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any

from trainmaster_operator.api.api_group import GROUP
from trainmaster_operator.cli.cluster_connection import CONNECTIONS, Target, connected, one_line
from trainmaster_operator.cli.container_logs import Line, Read, Source, in_order, parsed, source
from trainmaster_operator.cli.display.rank_output import rank_of, silent
from trainmaster_operator.cli.find_job import find
from trainmaster_operator.cli.kubeconfig import Where
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.stored_state import slots_in_rank_order
from trainmaster_operator.cluster.port import JOB, POD, ApiError, Invalid, NotFound, Object
from trainmaster_operator.control.open_files import allow_more_files
from trainmaster_operator.runtime.cache.cache_records import job_key
from trainmaster_operator.runtime.cache.informer import Informer, JobKey
from trainmaster_operator.runtime.tasks_that_end_together import until_one_ends

AT_ONCE = 16  # Number of logs that are fetched at the same time.
OTHER_FILES = 64  # Files and connections that the command may yet open besides one for each log.
HOLD_S = 0.5  # Seconds for which lines wait, while following, for earlier lines of other containers.
LOOK_S = 0.1
AGAIN_S = 1.0

Write = Callable[[bytes], Any]


def logs(where: Where, name: str, rank: int | None, follow: bool) -> int:
    """Write what one rank prints, or what all ranks print if `rank` is None. Return 0. Raise Refusal."""
    return asyncio.run(_logs(where, name, rank, follow))


async def _logs(where: Where, name: str, rank: int | None, follow: bool) -> int:
    async with connected(where) as target:
        job = await find(target, name)
        chosen = Choice(job, rank)
        wrote = False

        def write(text: bytes) -> None:
            nonlocal wrote
            wrote = True
            sys.stdout.buffer.write(text)

        last = await history(target, job, chosen, write, may_be_empty=follow)
        sys.stdout.buffer.flush()
        if follow:
            allow_more_files(CONNECTIONS + OTHER_FILES)  # For pods to come.
            await Follower(target, job, chosen, write, last).run()
        if rank is not None and not wrote:
            sys.stderr.write(silent(rank))
        return 0


class Choice:
    """Which pods are read, and which of their lines are shown. The constructor raises Refusal if there is no such
    rank."""

    def __init__(self, job: Object, rank: int | None) -> None:
        self.rank = rank
        self._slot = None if rank is None else _slot(job, rank)

    def takes(self, source: Source) -> bool:
        """Return whether the log of this container is read."""
        return self._slot is None or (source.role == "worker" and source.slot == self._slot)

    def shown(self, source: Source, text: bytes) -> bytes | None:
        """Return a line as it is shown, or None if it is not shown."""
        who = rank_of(text)
        if self.rank is not None:
            return text if who in (None, self.rank) else None
        return text if who is not None else f"[{source.place}] ".encode() + text


def _slot(job: Object, rank: int) -> int:
    workers = (job.get("spec") or {}).get("workers") or {}
    per_pod = workers.get("ranksPerPod") or 1
    slots = slots_in_rank_order(job) or list(range(workers.get("replicas") or 1))
    if not 0 <= rank < len(slots) * per_pod:
        raise Refusal(f"--rank {rank}: {job['metadata']['name']} has ranks 0 to {len(slots) * per_pod - 1}")
    return slots[rank // per_pod]


async def history(target: Target, job: Object, choice: Choice, write: Write, may_be_empty: bool) -> dict[str, str]:
    """Write the existing lines. Return the time of each pod's last line, by uid."""
    meta = job["metadata"]
    listing = await target.cluster.list(POD, meta["namespace"], {f"{GROUP}/job": meta["name"]})
    sources = [one for one in map(source, listing.items) if one.started and choice.takes(one)]
    if not sources and not may_be_empty:
        state = "none of its pods has started" if listing.items else "it has no pods"
        raise Refusal(
            f"{meta['namespace']}/{meta['name']}: its ranks have printed nothing: {state}; --follow waits for output"
        )
    last: dict[str, str] = {}
    _allow(f"{meta['namespace']}/{meta['name']}", len(sources))
    with ExitStack() as stack:
        files: Sequence[IO[bytes]] = [stack.enter_context(tempfile.TemporaryFile()) for _ in sources]
        turns = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(_fetch(target.read, *pair, turns) for pair in zip(sources, files, strict=True)))
        for number, line in in_order(files):
            one = sources[number]
            last[one.uid] = line.at
            _show(choice, one, line, write)
    return last


def _allow(job: str, count: int) -> None:
    """Make it possible to have this number of logs of a job open. Raise Refusal if the system does not let us."""
    allowed = allow_more_files(count + OTHER_FILES) - OTHER_FILES
    if allowed < count:
        raise Refusal(
            f"{job}: it has {count} logs, and this system lets a process open only {max(allowed, 0)} at the same time; "
            "--rank shows one rank, and `ulimit -Hn` is the limit"
        )


async def _fetch(read: Read, source: Source, file: IO[bytes], turns: asyncio.Semaphore) -> None:
    async with turns:
        try:
            async for raw in read(source, False, ""):
                file.write(raw + b"\n")
        except NotFound:
            pass  # The pod was deleted in the meantime.
        except ApiError as error:
            sys.stderr.write(f"trainmaster: {source.pod}: its log can't be read: {one_line(error)}\n")
    file.seek(0)


def _show(choice: Choice, source: Source, line: Line, write: Write) -> None:
    text = choice.shown(source, line.text)
    if text is not None:
        write(text + b"\n")


class Follower:
    """Continues after `last`, also with new pods, until the job has ended."""

    def __init__(self, target: Target, job: Object, choice: Choice, write: Write, last: dict[str, str]) -> None:
        self._choice = choice
        self._read = target.read
        self._write = write
        self._last = last
        self._key = job_key(job)
        self._uid: str = job["metadata"]["uid"]
        self._changed = asyncio.Event()
        self._streams: dict[str, asyncio.Task[None]] = {}  # By uid of the pod.
        self._held: list[tuple[str, int, float, Source, Line]] = []
        self._numbers = itertools.count()
        chance = random.Random()
        namespace = self._key.namespace
        self._jobs: Informer[Object] = Informer(
            target.cluster,
            JOB,
            slim=lambda obj, known: obj,
            owner=job_key,
            changed=self._mark,
            chance=chance,
            namespace=namespace,
        )
        self._pods: Informer[Source] = Informer(
            target.cluster,
            POD,
            slim=lambda obj, known: source(obj),
            owner=lambda obj: self._key,
            changed=self._mark,
            chance=chance,
            labels={f"{GROUP}/job": self._key.name},
            namespace=namespace,
        )

    async def run(self) -> None:
        """Follow until the job has ended. Raise OSError if the lines cannot be written."""
        try:
            # Of the others, each ends only by an error, for example because nothing reads the output any more.
            await until_one_ends(self._follow(), self._jobs.run(), self._pods.run(), self._write_held())
        finally:
            for stream in self._streams.values():
                stream.cancel()
            await asyncio.gather(*self._streams.values(), return_exceptions=True)
            self._flush(float("inf"))

    async def _follow(self) -> None:
        await self._jobs.synced.wait()
        await self._pods.synced.wait()
        while not self._over():
            self._begin()
            await self._changed.wait()
            self._changed.clear()

    def _over(self) -> bool:
        job = self._jobs.get(self._key)
        gone = job is None or job["metadata"]["uid"] != self._uid
        ended = not gone and ((job or {}).get("status") or {}).get("phase") in ("Succeeded", "Failed")
        began = all(one.uid in self._streams or not one.started for one in self._chosen())
        return (gone or ended) and began and all(task.done() for task in self._streams.values())

    def _chosen(self) -> list[Source]:
        return [one for one in self._pods.values() if self._choice.takes(one)]

    def _begin(self) -> None:
        for one in self._chosen():
            if one.started and one.uid not in self._streams:
                task = self._streams[one.uid] = asyncio.create_task(self._stream(one))
                task.add_done_callback(lambda _: self._changed.set())

    async def _stream(self, one: Source) -> None:
        """Read the log of one container until it has ended."""
        while True:
            ended = self._ended(one)
            since = self._last.get(one.uid, "")
            with suppress(ApiError):
                try:
                    async for raw in self._read(one, not ended, since):
                        line = parsed(raw, self._last.get(one.uid, ""))
                        if line.at > since:  # The server rounds the time to whole seconds, so it may repeat lines.
                            self._take(one, line)
                except (NotFound, Invalid):  # The pod or its log is gone.
                    return
            if ended:
                return
            await asyncio.sleep(AGAIN_S)

    def _ended(self, one: Source) -> bool:
        known = self._pods.get(JobKey(one.namespace, one.pod))
        return known is None or known.uid != one.uid or known.ended

    def _take(self, one: Source, line: Line) -> None:
        self._last[one.uid] = max(line.at, self._last.get(one.uid, ""))
        heapq.heappush(self._held, (line.at, next(self._numbers), asyncio.get_running_loop().time(), one, line))

    async def _write_held(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._flush(asyncio.get_running_loop().time() - HOLD_S)

    def _flush(self, until: float) -> None:
        wrote = False
        while self._held and self._held[0][2] <= until:
            *_, one, line = heapq.heappop(self._held)
            _show(self._choice, one, line, self._write)
            wrote = True
        if wrote:
            sys.stdout.buffer.flush()

    def _mark(self, key: JobKey) -> None:
        self._changed.set()
