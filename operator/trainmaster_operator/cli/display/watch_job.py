"""`trainmaster status NAME --watch`: shows a job on a cluster until it has ended."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress

from trainmaster_operator.api.api_group import GROUP
from trainmaster_operator.cli import operator_presence
from trainmaster_operator.cli.cluster_connection import Target, connected
from trainmaster_operator.cli.display import live_display
from trainmaster_operator.cli.display.piece_of_news import News, Tone
from trainmaster_operator.cli.display.scenes import Scene, scene_of_job
from trainmaster_operator.cli.display.status_diff import logs_command, news
from trainmaster_operator.cli.find_job import find
from trainmaster_operator.cli.kubeconfig import Where
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.stored_state import is_scripted, state_of
from trainmaster_operator.cluster.port import JOB, POD, ApiError, Object
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.facts.observation import PodRecord
from trainmaster_operator.runtime.cache.cache_records import job_key, owning_job, pod_entry
from trainmaster_operator.runtime.cache.informer import Informer, JobKey
from trainmaster_operator.runtime.tasks_that_end_together import until_one_ends

OPERATOR_LOOK_S = 10.0  # Seconds between two checks who leads.
SILENT_FAILURES = 4  # Failures of a list or a watch in succession that are not reported.

Make = Callable[[Scene], live_display.Display]


def watch(where: Where, name: str, plain: bool) -> int:
    """Show a job until it has ended. Return 0 if it succeeds, 1 if it fails or is deleted. Raise Refusal."""
    return asyncio.run(_watch(where, name, plain))


async def _watch(where: Where, name: str, plain: bool) -> int:
    async with connected(where) as target:
        return await follow(target, await find(target, name), lambda scene: live_display.choose(scene, plain))


async def follow(target: Target, job: Object, make: Make) -> int:
    """Show a job until it has ended, and return the exit code. `job`: the object that is known of it."""
    scene = scene_of_job(job)
    return await _Follower(target, job, scene, make(scene)).run()


class _Follower:
    def __init__(self, target: Target, job: Object, scene: Scene, shown: live_display.Display) -> None:
        self._key = job_key(job)
        self._uid: str = job["metadata"]["uid"]
        self._scene = scene
        self._display = shown
        self._changed = asyncio.Event()
        self._lost = False
        self._cluster = target.cluster
        self._gone: operator_presence.Absence | None = None
        self._some_pod: Object | None = None  # Any pod of the job; it names the operator.
        chance = random.Random()
        self._jobs: Informer[Object] = Informer(
            target.cluster,
            JOB,
            slim=lambda obj, known: obj,
            owner=job_key,
            changed=self._mark,
            chance=chance,
            namespace=self._key.namespace,
        )
        self._pods: Informer[PodRecord] = Informer(
            target.cluster,
            POD,
            slim=self._record,
            owner=owning_job,
            changed=self._mark,
            chance=chance,
            labels={f"{GROUP}/job": self._key.name},
            namespace=self._key.namespace,
        )

    async def run(self) -> int:
        """Show the job until it has ended. Return the exit code. Raise OSError if the display cannot be written."""
        self._display.start()
        works = (self._jobs.run(), self._pods.run(), self._draw(), self._look_for_operator())
        try:
            # Of the others, each ends only by an error, for example because nothing reads the output any more.
            code: int = await until_one_ends(self._look(), *works)
            return code
        except asyncio.CancelledError:
            again = f"trainmaster status {self._key.name} -n {self._key.namespace} --watch"
            self._display.tell(News("leaving", f"the job continues; `{again}` shows it again"))
            raise
        finally:
            self._display.stop()

    async def _look(self) -> int:
        await self._jobs.synced.wait()
        while True:
            pods = self._pods.owned(self._key)
            self._scene.pods = pods
            job = self._jobs.get(self._key)
            if job is None or job["metadata"]["uid"] != self._uid:
                self._display.tell(News("deleted", "the job was deleted", Tone.BAD))
                return 1
            new = state_of(job)
            # For a job that has ended already, everything is news.
            old = JobState() if self._scene.status.phase.finished else self._scene.status
            self._scene.status = new
            if self._gone is not None:
                self._scene.pods = [*pods, *operator_presence.missing_pods(self._key.name, new, pods, self._gone)]
            for piece in news(old, new, scripted=is_scripted(job)):
                self._display.tell(piece)
            if new.phase is JobPhase.FAILED:
                self._display.tell(News("logs", logs_command(f"{self._key.name} -n {self._key.namespace}", new)))
            if new.phase.finished:
                return 0 if new.phase is JobPhase.SUCCEEDED else 1
            await self._changed.wait()
            self._changed.clear()

    async def _look_for_operator(self) -> None:
        """Report when there is no operator any more, and when there is one again."""
        await self._jobs.synced.wait()
        while True:
            job = self._jobs.get(self._key)
            if job is not None:
                pods = [self._some_pod] if self._some_pod is not None else []
                with suppress(ApiError, Refusal):
                    self._tell_of_operator(
                        await operator_presence.absence(self._cluster, job, state_of(job), pods, time.time())
                    )
            await asyncio.sleep(OPERATOR_LOOK_S)

    def _tell_of_operator(self, gone: operator_presence.Absence | None) -> None:
        was, self._gone = self._gone, gone
        self._scene.unled = gone.sentence if gone is not None else ""
        if gone is not None and was is None:
            self._display.tell(News("operator", gone.sentence, Tone.WARNING))
        elif gone is None and was is not None:
            self._display.tell(News("operator", "an operator leads again", Tone.GOOD))
        if (gone is None) != (was is None):
            self._changed.set()

    def _record(self, obj: Object, known: PodRecord | None) -> PodRecord:
        self._some_pod = obj
        return pod_entry(obj, None, 0.0).record

    def _mark(self, key: JobKey) -> None:
        if key == self._key:
            self._changed.set()

    async def _draw(self) -> None:
        while True:
            lost = max(self._jobs.failures, self._pods.failures) >= SILENT_FAILURES
            if lost != self._lost:
                self._lost = lost
                word = "does not answer; trying again" if lost else "answers again"
                self._display.tell(News("cluster", word, Tone.WARNING if lost else Tone.GOOD))
            self._display.draw()
            await asyncio.sleep(live_display.FRAME_S)
