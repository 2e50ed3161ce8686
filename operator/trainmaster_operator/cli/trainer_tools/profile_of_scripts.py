"""`trainmaster profile` for a job of a script on a cluster: each rank records by itself, and the command brings the
records here.

The pods are asked one after the other, and each pod's ranks decide by themselves which steps they record, so ranks of
different pods may record different steps.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainmaster.contract.wire import profile_records, profile_request
from trainmaster_operator.cli.cluster_connection import Target, one_line
from trainmaster_operator.cli.fault_injection.inject_fault import newest_pods, run_agent, slots_in_order
from trainmaster_operator.cli.refusal import Refusal, why
from trainmaster_operator.cli.trainer_tools.received_records import Allowance, Received, Strange, printable
from trainmaster_operator.cluster.kubernetes_exec import Done
from trainmaster_operator.cluster.port import ApiError, Object

AT_ONCE = 8  # pods
ONE_LOOK_S = 20  # seconds that a pod may wait before it answers: a connection without traffic may be cut
PAUSE_S = 1.0  # between two looks: a pod may answer at once
_TRANSFER_S = 900.0  # seconds in which a pod must have sent its records
_WITHDRAWAL_S = 10.0
_TOLD = 5  # sentences about pods

Receive = Callable[[bytes], None] | None
Ask = Callable[[Object, list[str], Receive], Awaitable[Done]]
"""(pod, what follows the agent's own command, what gets the output) -> the result."""


@dataclass(frozen=True)
class Wanted:
    """What a person asks for. `out`: a folder that is new or empty; None: one in the working directory."""

    steps: int
    out: Path | None
    wait_s: float


def asks(target: Target) -> Ask:
    """Return a function that runs the agent's command in a pod."""

    async def ask(pod: Object, words: list[str], receive: Receive) -> Done:
        return await run_agent(target, pod, words, _TRANSFER_S, receive)

    return ask


def folder_of(job: str, out: Path | None) -> Path:
    """Return the folder for the records of a job. Raise Refusal if it holds something already."""
    if out is None:
        names = [f"profile-{job}", *(f"profile-{job}-{number}" for number in range(2, 1000))]
        return Path(next(name for name in names if not os.path.lexists(name)))
    try:
        if out.is_symlink() or (out.exists() and any(out.iterdir())):
            raise Refusal(f"--out {out}: a folder that is new or empty is expected")
    except OSError as error:
        raise Refusal(f"--out {out}: {why(error)}; a folder that is new or empty is expected") from None
    return out


async def record(target: Target, job: Object, wanted: Wanted, ask: Ask) -> str:
    """Let all ranks of a job record their next steps, and bring the records here. Return what to say about it.

    Raise Refusal if no rank has recorded. Then, and if it is cancelled, nothing is left here or in the pods.
    """
    name = job["metadata"]["name"]
    out = folder_of(name, wanted.out)
    pods = await newest_pods(target, job)
    slots = slots_in_order(job, pods)
    if not slots or slots[0] not in pods:
        raise Refusal(f"{target.namespace}/{name}: rank 0 has no running pod")
    per_pod = job["spec"]["workers"].get("ranksPerPod", 1)
    in_order = {place: pods[slot] for place, slot in enumerate(slots) if slot in pods}
    asked = _Asked(in_order, per_pod, profile_request.new_identity(), ask)
    missing = [folder for folder in out.parents if not os.path.exists(folder)]
    try:
        # The folder is made first: it is clear at once whether the records can be kept.
        out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        _remove_empty(missing)
        raise Refusal(f"{out}: cannot be created: {why(error)}; choose another --out") from None
    try:
        problems = await asked.request(wanted.steps)
        problems += await asked.bring(work, name, wanted.wait_s)
        found = len({path.name.split(".")[0] for path in work.rglob("*") if path.is_file()})
        if not found:
            raise Refusal(*_shortened(problems), f"{target.namespace}/{name}: nothing was recorded; nothing is kept")
        os.chmod(work, 0o755)
        os.rename(work, out)
    except OSError as error:
        raise Refusal(f"{out}: cannot be written: {why(error)}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
        _remove_empty(missing)
        await asked.withdraw()
    ranks = per_pod * len(slots)
    said = [f"{out} has the records of {found} of {ranks} ranks; tensorboard --logdir {out} opens them"]
    return "\n".join([*_shortened(problems), *said])


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove those of the folders that are empty. Each one is in the next one."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


class _Asked:
    """The pods of a job, by their place among the ranks, and one request to them."""

    def __init__(self, pods: dict[int, Object], per_pod: int, identity: str, ask: Ask) -> None:
        self._pods, self._per_pod, self._identity, self._ask = pods, per_pod, identity, ask
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._allowance = Allowance()

    async def request(self, steps: int) -> list[str]:
        """Ask all pods. Return what goes wrong, in sentences, and leave out these pods. Raise Refusal if all refuse."""

        async def one(place: int) -> str:
            return await self._run(self._pods[place], ["profile", str(steps), self._identity])

        places = list(self._pods)
        problems = dict(zip(places, await asyncio.gather(*map(one, places)), strict=True))
        failed = [words for words in problems.values() if words]
        if len(failed) == len(places):
            raise Refusal(*_shortened(failed))
        self._pods = {place: self._pods[place] for place in places if not problems[place]}
        return failed

    async def bring(self, folder: Path, session: str, wait_s: float) -> list[str]:
        """Wait for the records, and put them into `folder`. Return what goes wrong, in sentences. Raise Refusal."""
        deadline = asyncio.get_running_loop().time() + wait_s
        tasks = [asyncio.ensure_future(self._bring_one(place, folder, session, deadline)) for place in self._pods]
        try:
            return [words for found in await asyncio.gather(*tasks) for words in found]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _bring_one(self, place: int, folder: Path, session: str, deadline: float) -> list[str]:
        pod, ranks = self._pods[place], range(place * self._per_pod, (place + 1) * self._per_pod)
        name = pod["metadata"]["name"]
        while True:
            now = asyncio.get_running_loop().time()
            part = Path(tempfile.mkdtemp(prefix=".pod-", dir=folder))
            try:
                received = Received(name, ranks, part, self._allowance)
                try:
                    seconds = min(max(deadline - now, 0), ONE_LOOK_S)
                    problem = await self._run(pod, ["profile", "collect", self._identity, f"{seconds:.1f}"], received)
                finally:
                    received.close()
                if problem:
                    return [problem]
                received.end()
                if not received.waiting:
                    _put(part, folder, session)
                    return _states(received)
            except Strange as refusal:
                return [str(refusal)]
            finally:
                shutil.rmtree(part, ignore_errors=True)
            if now >= deadline:
                return [_too_late(received)]
            await asyncio.sleep(PAUSE_S)

    async def withdraw(self) -> None:
        """Remove the request, and the records, from the pods. A pod that does not answer loses them when it ends."""
        words = ["profile", "withdraw", self._identity]
        try:
            async with asyncio.timeout(_WITHDRAWAL_S):
                await asyncio.gather(*(self._run(pod, words) for pod in self._pods.values()))
        except TimeoutError:
            return

    async def _run(self, pod: Object, words: list[str], received: Received | None = None) -> str:
        """Return what went wrong in a sentence; "" if nothing did."""
        name = pod["metadata"]["name"]
        try:
            async with self._gate:
                done = await self._ask(pod, words, received.feed if received is not None else None)
        except ApiError as error:
            return f"{name}: {printable(one_line(error))}"
        return f"{name}: {printable(' '.join(done.err.split())) or f'exit code {done.code}'}" if done.code else ""


def _put(part: Path, folder: Path, session: str) -> None:
    for path in sorted(part.iterdir()):
        place = profile_records.place_of(path.name, session)
        assert place is not None, "names were checked when they came"
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)


def _states(received: Received) -> list[str]:
    """Return a sentence for each rank of a pod that has recorded nothing."""
    none = ("", "it has not answered; another request may have taken the place of this one")
    found = {rank: received.states.get(rank, none) for rank in received.ranks}
    return [f"rank {rank}: {words}" for rank, (state, words) in found.items() if state != profile_records.DONE]


def _too_late(received: Received) -> str:
    begun = sum(rank in received.states for rank in received.ranks)
    why_so = (
        f"{begun} of its {len(received.ranks)} ranks have begun to record, but not all have ended"
        if begun
        else "none of its ranks has completed a step that Trainmaster sees"
    )
    return (
        f"{received.pod}: the time is up: {why_so}; the request is taken back; to ask again with more time, give the "
        f"same command with a larger --wait"
    )


def _shortened(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - _TOLD
    return [*sentences[:_TOLD], *([f"… and {more} more of this kind"] if more > 0 else [])]
