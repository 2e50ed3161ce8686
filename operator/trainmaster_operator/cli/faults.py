"""Faults of a local run: what was asked for, and the socket at which ranks ask whether one may fire.

Each fault fires once in the life of the run, although a step may be replayed. What a rank can't do itself, killing
its pod or the operator, is done here before it gets its answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from trainmaster_operator.api.job import DistributedTrainingJob, Framework
from trainmaster_operator.cli import image
from trainmaster_operator.cli.refusal import Refusal

log = logging.getLogger(__name__)


def parse(texts: Sequence[str], job: DistributedTrainingJob) -> str:
    """The faults as the JSON that ranks get. Raises Refusal with all problems."""
    if not texts:
        return ""
    module, errors = image.trainer("faults"), image.trainer("errors")
    if module is None or errors is None:
        raise Refusal("--fault: the trainer isn't installed here; install trainmaster[train]")
    faults, problems = [], []
    steps = job.spec.training.steps if job.spec.training else None
    for text in texts:
        try:
            fault = module.parse(text)
        except errors.ConfigError as error:
            problems.append(f"--{error}")
            continue
        faults.append(fault)
        if fault.rank >= job.spec.world_size:
            problems.append(f"--fault {text}: the job has ranks 0 to {job.spec.world_size - 1}, not {fault.rank}")
        if steps is not None and fault.step > steps:
            problems.append(f"--fault {text}: the job ends with step {steps}, before {fault.step}")
        if fault.kind == "corrupt-checkpoint" and job.spec.framework is not Framework.TRAINMASTER:
            problems.append(f"--fault {text}: only framework Trainmaster writes checkpoints of ours")
    if problems:
        raise Refusal(*problems)
    encoded: str = module.encode(faults)
    return encoded


class FaultServer:
    """`kinds`: the kind of each fault by its id. Runs until closed."""

    def __init__(
        self,
        path: Path,
        encoded: str,
        kill_pod: Callable[[str], Awaitable[None]],
        kill_operator: Callable[[], Awaitable[None]],
        fired: Callable[[str], None],
    ) -> None:
        self.path = path
        self._waiting: dict[str, dict[str, Any]] = {f["id"]: f for f in json.loads(encoded)} if encoded else {}
        self._kill_pod = kill_pod
        self._kill_operator = kill_operator
        self._fired = fired
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self.path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = {"go": await self._may_fire(json.loads(line))}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (ValueError, KeyError, TypeError) as error:
            log.warning("malformed question about a fault: %s", error)
        except ConnectionError:
            return  # whoever asked is gone
        finally:
            writer.close()

    async def _may_fire(self, question: dict[str, Any]) -> bool:
        fault = self._waiting.pop(question["fire"], None)
        if fault is None:
            return False
        self._fired(f"{fault['kind']}, asked for on rank {question['rank']} in step {question['step']}")
        if fault["kind"] == "kill-pod":
            await self._kill_pod(question["pod"])
        elif fault["kind"] == "kill-operator":
            await self._kill_operator()
        return True
