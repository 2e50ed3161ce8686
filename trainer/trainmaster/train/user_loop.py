"""A user's own training loop under Trainmaster:

    import trainmaster as tm

    run = tm.init()
    state = tm.State(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    for step in run.steps(state, total=1000, save_every=100):
        ...
        run.report(loss=loss)

Under plain `python` it only counts steps. Under torchrun it saves and resumes if a checkpoint folder is given. Under
an agent it also reports progress, stops on request and takes part in fault injection.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainmaster.checkpoint.memory.memory_save_interval import MEASURED_SAVES
from trainmaster.checkpoint.state.capture import is_sharded
from trainmaster.checkpoint.state.checkpoint_session import Session
from trainmaster.checkpoint.state.prove_digests import Probe
from trainmaster.checkpoint.state.resume_conditions import Resume
from trainmaster.contract.wire import channel as wire
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.contract.wire.progress_record import Phase
from trainmaster.errors import ConfigError, NotSaved, TrainmasterError
from trainmaster.rank import exception_verdict, injected_faults, step_recording
from trainmaster.rank.reporter import Reporter
from trainmaster.train import reported_steps
from trainmaster.train.after_failure.rescue import Rescue
from trainmaster.train.async_transfer import Reading
from trainmaster.train.process_group import shared_store
from trainmaster.train.random_generators import RandomGenerators
from trainmaster.train.stop_request import stop_binds

_GENERATORS = "random_generators"


class State:
    """What a checkpoint keeps: objects with `state_dict()` and `load_state_dict()`, each under a name of your choice.

        state = tm.State(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)

    Modules (plain, DDP, FSDP2) and optimizers are saved in shards and can be loaded with any number of ranks. Objects
    that have an `optimizer`, such as learning-rate schedules, are saved once. Everything else, such as loaders and
    samplers, is saved for each rank. The random generators of Python, NumPy and torch are always saved too.

    Raises ConfigError for an object without these two methods.
    """

    def __init__(self, **objects: Any) -> None:
        for name, thing in objects.items():
            if is_sharded(thing):
                continue
            missing = [m for m in ("state_dict", "load_state_dict") if not callable(getattr(thing, m, None))]
            if missing:
                raise ConfigError(f"tm.State({name}=…): a {type(thing).__name__} has no {' and no '.join(missing)}()")
        self.objects = objects

    def weights(self) -> Iterator[torch.Tensor]:
        """Yield the parameters of all modules, as tensors without gradients."""
        modules = (thing for thing in self.objects.values() if isinstance(thing, torch.nn.Module))
        return (parameter.data for module in modules for parameter in module.parameters())


class Run:
    """One process of a run. `tm.init()` returns it."""

    def __init__(self, reporter: Reporter, checkpoint_dir: str, keep: int) -> None:
        self._reporter = reporter
        self._checkpoint_dir = checkpoint_dir
        self._keep = keep
        self._step = 0  # completed
        self._world_size = 1
        self._reported: dict[str, Any] = {}
        self._under_way: list[tuple[int, float, dict[str, Any]]] = []

    @property
    def step(self) -> int:
        """Return the number of the last completed step, 0 before the first one."""
        return self._step

    def steps(self, state: State, total: int, save_every: int | None = None) -> Iterator[int]:
        """Restore `state` from the newest checkpoint, and yield the number of each step that is left, up to `total`.

            for step in run.steps(state, total=1000, save_every=50):
                ...

        - `state`: all that a checkpoint has to keep.
        - `total`: the number of steps of the whole run. Steps are counted from 1.
        - `save_every`: the number of steps between two checkpoints. The last step is always saved. Default: only the
          last step is saved.

        The body of the loop is one step. Between two steps the run saves, and stops if the job is suspended, resized or
        drained: then it saves and raises SystemExit with the exit code 90. With several ranks,
        `torch.distributed.init_process_group()` must be called before.
        """
        try:
            session, first = self._begin(state, total)
        except TrainmasterError as error:
            raise SystemExit(exception_verdict.say(self._reporter, error, self._step)) from error
        reporter = self._reporter
        reporter.obeys_stop()
        reporter.phase(Phase.STEP)
        memory = Memory(self, session, reporter)
        if first == total and session.from_memory:
            self._save(session)  # the end of the run, which only memory had
        probe = Probe(session.objects, session.rank, reporter)
        probe.note(first, "restored", sys._getframe(1))
        try:
            for step in range(first + 1, total + 1):
                if stop_binds(reporter, self._step):
                    self._leave(session)
                began = time.monotonic()
                yield step
                # The loop's body is opaque: a fault inside this step strikes at its end.
                injected_faults.at_step(step, session.rank, state.weights)
                seconds = time.monotonic() - began
                self._completed(step, seconds)
                memory.completed(step, seconds)
                probe.note(step, "after", sys._getframe(1))
                if session.url and (step == total or (save_every and step % save_every == 0)):
                    self._save(session)
                    probe.saved(session.drain)
            reporter.phase(Phase.DRAIN)
        finally:
            memory.close()
            self._settle(wait=True)
            session.drain()
        self._finish(session)
        reporter.phase(Phase.DONE)

    def resumed(self, step: int) -> None:
        """Say, in a script with its own loop and checkpoints, that this process continues after `step`, whose
        checkpoint it has loaded; 0: it begins. Call it before the first `run.report(step=...)`.

        A script that does not report every step calls it, because otherwise nothing shows where such a script
        continued. `run.steps()` says it by itself.

        Raises ValueError for a step below 0, or after a report.
        """
        self._step = reported_steps.begin(self._reporter, step)

    def report(self, loss: Any = None, tokens: int = 0, *, step: int | None = None, **metrics: Any) -> None:
        """Report the numbers of a step. They go into the job's status, the report and `metrics.jsonl`.

        - `loss` and `metrics`: numbers or tensors. In the loop of `run.steps()` the call does not wait for a device: a
          tensor is read when it is computed, one or two steps later.
        - `tokens`: the number of tokens that all ranks together consumed in this step.
        - `step`: only outside of `run.steps()`, the number of the step that is completed, counted from 1. Then the call
          waits until the numbers are computed, and raises ValueError for a step below 1.
        """
        if step is not None:
            self._step = reported_steps.complete(self._reporter, step, loss, tokens, metrics)
            return
        numbers = {"loss": loss, **metrics}
        self._reported = {k: _start_reading(v) for k, v in numbers.items() if v is not None}
        self._reported["tokens"] = tokens

    def event(self, reason: str, message: str) -> None:
        """Add an event to the job, which `kubectl describe` and the report show. `reason` is one CamelCase word."""
        self._reporter.event(reason, message)

    def _begin(self, state: State, total: int) -> tuple[Session, int]:
        world_size = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
        if world_size > 1 and self._checkpoint_dir and not dist.is_initialized():
            raise ConfigError(
                "run.steps() needs torch.distributed.init_process_group() before it if there are several ranks"
            )
        self._world_size = world_size
        reporter = self._reporter
        rank = dist.get_rank() if dist.is_initialized() else reporter.rank
        reporter.progress.rendezvous_ns = reporter.progress.built_ns = time.monotonic_ns()
        session = Session(
            self._checkpoint_dir,
            {**state.objects, _GENERATORS: RandomGenerators()},
            reporter,
            rank=rank,
            world_size=world_size,
            store=shared_store(),
            keep=self._keep,
        )
        found = session.restore(Resume.from_environment())
        self._step = found.manifest.step if found else 0
        reporter.progress.total_steps = total
        if session.url or reporter.under_agent:
            reporter.resumed(self._step, found.path if found else None, found.tier if found else "")
        return session, self._step

    def _completed(self, step: int, seconds: float) -> None:
        self._step = step
        self._under_way.append((step, seconds, self._reported))
        tokens = self._reported.get("tokens", 0)
        self._reported = {}
        self._settle(wait=False)
        self._reporter.stepped(step, tokens // self._world_size)  # an agent hears of its own ranks' share
        step_recording.completed(step, self._reporter.phase)

    def _settle(self, wait: bool) -> None:
        """Publish the numbers that have arrived."""
        while self._under_way:
            step, seconds, reported = self._under_way[0]
            if not wait and not all(v.arrived() for v in reported.values() if isinstance(v, Reading)):
                return
            del self._under_way[0]
            numbers = {k: _read(v) for k, v in reported.items()}
            loss = numbers.get("loss")
            if isinstance(loss, float):
                self._reporter.loss(step, loss)
            if self._reporter.under_agent:
                self._reporter.metrics(
                    step=step, round=self._reporter.round, **{"seconds": round(seconds, 6), **numbers}
                )

    def publish(self) -> None:
        """Write the numbers of all completed steps to `metrics.jsonl`, and wait for a device that still computes them.

        `run.steps()` calls it before each save, because a run that resumes from the save does not repeat these steps.
        """
        self._settle(wait=True)

    def _save(self, session: Session) -> None:
        self.publish()
        session.save(self._step, common(self._step))

    def _leave(self, session: Session) -> None:
        if session.url:
            self._save(session)
        self._reporter.phase(Phase.DRAIN)
        self._finish(session)
        self._reporter.send(wire.SAVED, {"step": self._step, "kept": bool(session.url)})
        raise SystemExit(ExitCode.SAVED)

    def _finish(self, session: Session) -> None:
        """Wait for the last save. Raise SystemExit, with a code that the agent understands, if it has failed."""
        try:
            session.finish()
        except NotSaved as error:
            raise SystemExit(exception_verdict.say(self._reporter, error, self._step)) from error


class Memory:
    """The saves of a user's loop to its agent's memory, and its part in a rescue.

    It does nothing without an agent's memory. What happens within a step is not known, except that no state changes
    before the first `optimizer.step()`: until then, a rescue saves the state between the two steps.
    """

    def __init__(self, run: Run, session: Session, reporter: Reporter) -> None:
        self._run, self._session = run, session
        self._rescue = Rescue(reporter, self._save_in_need)
        self._hook: Any = None
        self._first = run.step + 1
        session.boundary()
        # On a device a step that the host has passed may still fail there.
        if session.ram is not None and not (torch.cuda.is_available() and torch.cuda.is_initialized()):
            self._hook = register_optimizer_step_pre_hook(self._changes)
            self._rescue.watch()

    def completed(self, step: int, seconds: float) -> None:
        """Note that a step is completed, and save it to memory if it is due."""
        if self._session.ram is None:
            return
        with self._rescue.frozen:
            self._session.boundary()
            self._rescue.mutating = False
        if self._due(step, seconds):
            self._session.settle()
            # Without a collective to agree by, a step that one rank left out would be missing for all.
            self._session.await_copy()
            self._run.publish()
            with self._rescue.frozen:
                self._session.remember(step, common(step))

    def close(self) -> None:
        """Stop watching the optimizer."""
        if self._hook is not None:
            self._hook.remove()

    def _changes(self, *_: Any) -> None:
        if not self._rescue.mutating:
            with self._rescue.frozen:
                self._rescue.mutating = True

    def _due(self, step: int, seconds: float) -> bool:
        """Return True if `step` is to be saved.

        There is no collective to agree with, so rank 0 measures the first saves and sets the interval of all ranks.
        """
        session = self._session
        if session.interval.every is None and step == self._first + MEASURED_SAVES:
            session.settle()
            if session.rank == 0:
                session.interval.saved(step, session.save_s, seconds)
                session.store.set("memory/every", str(session.interval.next - step))
            session.interval.every = int(session.store.get("memory/every"))
        return session.due(step)

    def _save_in_need(self) -> int | None:
        return self._session.rescue(self._run.step, common(self._run.step))


def common(step: int) -> dict[str, Any]:
    """Return what a checkpoint says about a user's loop, the same on all ranks."""
    cursor = {"kind": "steps", "version": 1, "consumed": step, "skipped": [], "fingerprint": "", "source": {}}
    return {"mesh": {}, "data": cursor, "rng": {"kind": "per-rank"}, "config_sha256": ""}


def init(checkpoint_dir: str | os.PathLike[str] | None = None, keep: int = 3) -> Run:
    """Return the run that this process is a part of, as `trainmaster.train.reported_steps.init` describes it."""
    folder = os.environ.get(environment.CHECKPOINT_DIR) or os.fspath(checkpoint_dir or "")
    return Run(Reporter.from_environment(), folder, keep)


def _start_reading(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.to_local() if hasattr(value, "to_local") else value  # never a collective here
        return Reading(value)
    return float(value)


def _read(value: Any) -> Any:
    if not isinstance(value, Reading):
        return value
    numbers = value.values()
    return numbers[0] if len(numbers) == 1 else numbers
