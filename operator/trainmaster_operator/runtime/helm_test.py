"""The test that `helm test` runs: a job that loses a rank must recover and succeed.

`python -m trainmaster_operator.runtime.helm_test JOB.yaml` creates the job of that file, prints its progress, and
deletes it when it has recovered. A job that does not recover stays, so that its events and logs can be read.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from trainmaster_operator.cluster.kubernetes import KubernetesCluster
from trainmaster_operator.cluster.kubernetes_credentials import NoCluster
from trainmaster_operator.cluster.port import DELETED, JOB, ApiError, Cluster, Gone, NotFound, Object, Unavailable
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState
from trainmaster_operator.planning.status_mapping import read_status

LIMIT_S = 600.0
AGAIN_S = 1.0  # Seconds before the API server is called again after it did not answer.
Say = Callable[[str], None]


async def recover(cluster: Cluster, job: Object, say: Say, limit_s: float = LIMIT_S) -> bool:
    """Run `job`, which has a name and a namespace. Return True if it recovered at least once and succeeded.

    `limit_s`: maximum number of seconds for all of it. Raise ApiError if the API server refuses a call.
    """
    try:
        async with asyncio.timeout(limit_s):
            return await _run(cluster, job, say)
    except TimeoutError:
        pass
    with suppress(NotFound):
        last = _status(await cluster.get(JOB, job["metadata"]["namespace"], job["metadata"]["name"]))
        say(f"the job is still {last.phase.value} after {limit_s:g} s; it stays for you to look at")
        for obstacle in _obstacles(last):
            say(obstacle)
    return False


async def _run(cluster: Cluster, job: Object, say: Say) -> bool:
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    await _remove(cluster, namespace, name)
    made = await cluster.create(JOB, job)
    say(f"job {namespace}/{name} is created")
    told: list[str] = []
    async for now in _changes(cluster, namespace, name, made):
        if now is None:
            say("the job was deleted by somebody else")
            return False
        status = _status(now)
        restarts = status.restarts.total
        # Helm waits for five minutes by default and shows what was printed until then, so obstacles are not kept back.
        lines = [f"{status.phase.value}, {restarts} restart{'' if restarts == 1 else 's'}", *_obstacles(status)]
        for line in lines:
            if line not in told:
                say(line)
        told = lines
        if status.phase.finished:
            return await _judge(cluster, namespace, name, status, say)
    raise AssertionError("a job has no last change")


async def _judge(cluster: Cluster, namespace: str, name: str, status: JobState, say: Say) -> bool:
    if status.phase is not JobPhase.SUCCEEDED:
        failure = status.lastFailure
        say(f"the job failed: {failure.message}" if failure is not None else "the job failed")
        say(f"kubectl describe -n {namespace} dtj {name}")
        return False
    if not status.restarts.total:
        say("the job succeeded, but none of its ranks was restarted: nothing was recovered")
        return False
    say("the job lost a rank, recovered and succeeded")
    with suppress(NotFound):
        await cluster.delete(JOB, namespace, name)
    return True


def _obstacles(status: JobState) -> list[str]:
    """Return a sentence for each condition that says why the job does not go on."""
    return [
        f"{condition.type} is False: {condition.reason}: {condition.message}"
        for condition in status.conditions
        if condition.status == "False" and condition.message
    ]


async def _remove(cluster: Cluster, namespace: str, name: str) -> None:
    """Delete a job that an earlier test left, and wait until it is gone."""
    try:
        found = await cluster.get(JOB, namespace, name)
        await cluster.delete(JOB, namespace, name, uid=found["metadata"]["uid"])
    except NotFound:
        return
    async for now in _changes(cluster, namespace, name, found):
        if now is None:
            return


async def _changes(cluster: Cluster, namespace: str, name: str, known: Object) -> AsyncIterator[Object | None]:
    """Yield each state of one object after `known`. Yield None and end when it is deleted."""
    uid, version = known["metadata"]["uid"], known["metadata"]["resourceVersion"]
    while True:
        try:
            async for event in cluster.watch(JOB, version, namespace):
                version = event.object["metadata"]["resourceVersion"]
                if event.object["metadata"].get("uid") != uid:
                    continue
                if event.type == DELETED:
                    yield None
                    return
                yield event.object
        except (Gone, Unavailable):
            await asyncio.sleep(AGAIN_S)
            try:
                now = await cluster.get(JOB, namespace, name)
            except NotFound:
                yield None
                return
            except Unavailable:
                continue
            if now["metadata"]["uid"] != uid:
                yield None
                return
            version = now["metadata"]["resourceVersion"]
            yield now


def _status(job: Object) -> JobState:
    return read_status(job.get("status"))


async def _main(options: argparse.Namespace) -> int:
    job: dict[str, Any] = yaml.safe_load(options.job.read_text(encoding="utf-8"))
    cluster = await KubernetesCluster.connect()
    try:
        recovered = await recover(cluster, job, lambda words: print(words, flush=True), options.limit)
    finally:
        await cluster.close()
    return 0 if recovered else 1


def main(arguments: list[str] | None = None) -> int:
    """Run the test for the job in a file. Return 0 if the job recovered and succeeded, else 1."""
    made = argparse.ArgumentParser(prog="python -m trainmaster_operator.runtime.helm_test", description=__doc__)
    made.add_argument("job", type=Path, metavar="JOB.yaml")
    made.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="(default: %(default)g)")
    try:
        return asyncio.run(_main(made.parse_args(arguments)))
    except (NoCluster, ApiError) as error:
        sys.stderr.write(f"the API server: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
