"""Faults of a local run: the requested faults, and the socket at which ranks ask whether a fault may happen.

Each fault happens once in a run, although a step may be repeated. What a rank cannot do itself is done here before the
rank gets its answer: to its agent, which has a socket of its own, to its pod, to the operator or to the store.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainmaster_operator.api.job_spec import DistributedTrainingJob, Framework, JobSpec
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.stored_state import state_of
from trainmaster_operator.cli.this_machine import trainer_checks

log = logging.getLogger(__name__)

Fault = dict[str, Any]

Act = Callable[[Fault, str], Awaitable[str]]
"""Performs a fault for which a rank in the pod with this name asked. Returns why it cannot be done; "" when it is
done."""


def parse(texts: Sequence[str], job: DistributedTrainingJob) -> str:
    """Return the faults as the JSON that ranks get. Raise Refusal with all problems."""
    return encoded(texts, job.spec, "--fault ", now=False) if texts else ""


def refuse_what_is_over(texts: Sequence[str], encoded: str, before: Mapping[str, Any], *, finished: bool) -> None:
    """Raise Refusal for a fault that could never happen: the run in this directory has succeeded, or the run
    continues after the step of the fault. `before`: the resource of the run in the directory."""
    if not encoded:
        return
    name = before["metadata"]["name"]
    if finished:
        raise Refusal(
            f"--fault {' and --fault '.join(texts)}: job {name} has succeeded already, so nothing in it can be "
            f"broken; --fresh runs it again from the first step"
        )
    saved = state_of(before).checkpoint
    step = saved.step if saved is not None else 0
    over = [text for text, fault in zip(texts, json.loads(encoded), strict=True) if 0 < fault["step"] <= step]
    if over:
        raise Refusal(
            *(
                f"--fault {text}: the run continues after step {step}, where its last checkpoint is; give a later "
                f"step, or start again from the first step with --fresh"
                for text in over
            )
        )


def encoded(texts: Sequence[str], spec: JobSpec, option: str, *, now: bool) -> str:
    """Return the faults as JSON. `option`: what precedes a fault on the command line. `now`: a fault needs no step.
    Raise Refusal."""
    module, errors = (
        trainer_checks.trainer("trainmaster.rank.injected_faults"),
        trainer_checks.trainer("trainmaster.errors"),
    )
    if module is None or errors is None:
        raise Refusal("faults: the trainer isn't installed here; `make venv` in a clone of Trainmaster installs it")
    faults, problems = [], []
    steps = spec.training.steps if spec.training else None
    for text in texts:
        try:
            fault = module.parse(text, now=now)
        except errors.ConfigError as error:
            problems.append(f"{'--' if option else ''}{error}")
            continue
        faults.append(fault)
        if fault.rank >= spec.world_size:
            problems.append(f"{option}{text}: the job has ranks 0 to {spec.world_size - 1}, not {fault.rank}")
        if steps is not None and fault.step > steps:
            problems.append(f"{option}{text}: the job has {steps} steps, so it never reaches step {fault.step}")
        if fault.kind == "corrupt-checkpoint" and spec.framework is not Framework.TRAINMASTER:
            problems.append(
                f"{option}{text}: only a job of framework Trainmaster has checkpoints that this fault can corrupt"
            )
    if problems:
        raise Refusal(*problems)
    text_of_all: str = module.encode(faults)
    return text_of_all


class FaultServer:
    """Serves the faults of a run until closed. `acts`: what is done here, by the kind of the fault. `fired`: called
    with a sentence about each fault."""

    def __init__(self, path: Path, encoded: str, acts: Mapping[str, Act], fired: Callable[[str], None]) -> None:
        self.path = path
        self.undone: list[tuple[Fault, str]] = []  # Faults that could not be done, each with the reason.
        self._waiting: dict[str, Fault] = {f["id"]: f for f in json.loads(encoded)} if encoded else {}
        self._acts = acts
        self._fired = fired
        self._server: asyncio.Server | None = None

    @property
    def waiting(self) -> tuple[Fault, ...]:
        """The faults that have not happened yet, in the order in which they were requested."""
        return tuple(self._waiting.values())

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
            return  # The client has closed the connection.
        finally:
            writer.close()

    async def _may_fire(self, question: dict[str, Any]) -> bool:
        fault = self._waiting.pop(question["fire"], None)
        if fault is None:
            return False
        asked, after = fault["step"] or question["step"], f"whose last completed step is {question['after']}"
        self._fired(f"{fault['kind']}, asked for on rank {question['rank']} in step {asked}, {after}")
        act = self._acts.get(fault["kind"])
        if act is not None and (why_not := await act(fault, question["pod"])):
            self.undone.append((fault, why_not))
            self._fired(f"{fault['kind']} could not be done: {why_not}")
        return True
