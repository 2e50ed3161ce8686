"""Our own training loop: what a rank of the framework Trainmaster runs (`python -m trainmaster.loop`)."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import Tensor, nn

from trainmaster import data, faults, lastwords, layout, models, optimizer, parallel
from trainmaster.checkpoint.probe import Probe
from trainmaster.checkpoint.resume import Checkpoint, Resume
from trainmaster.checkpoint.session import Session
from trainmaster.contract.config import TrainingConfig
from trainmaster.contract.wire import channel as wire
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.codes import ExitCode
from trainmaster.contract.wire.progress import Phase
from trainmaster.data.skips import Skips
from trainmaster.divergence import Divergence
from trainmaster.errors import ConfigError, DataError, Diverged
from trainmaster.lastsums import LastSums
from trainmaster.report import Reading, Reporter, finite
from trainmaster.rescue import Rescue
from trainmaster.steplog import StepLog
from trainmaster.stop import stop_binds
from trainmaster.world import World

LAST_WRITE_LIMIT_S = 10.0


@dataclass(frozen=True)
class StepRecord:
    """A step whose numbers may still be on their way from the device."""

    step: int
    reading: Reading  # loss, gradient norm
    tokens: int  # of the whole world
    own_tokens: int  # of this rank
    rate: float
    seconds: float = math.nan

    def finite(self) -> bool:
        """Waits for the device if the numbers haven't arrived."""
        return all(map(math.isfinite, self.reading.values()))


@dataclass(frozen=True)
class Prepared:
    """A step whose gradients are complete: only the sums over all ranks are missing."""

    step: int
    tokens: int  # of the whole world
    own_tokens: int  # of this rank
    began: float  # by the monotonic clock


class Training:
    """One rank's part of a run, from rendezvous to the last step."""

    def __init__(self, config: TrainingConfig, reporter: Reporter) -> None:
        self.reporter = reporter
        self.step = 0  # completed: the boundary that the parameters and the optimizer stand at
        self.consumed = 0  # samples
        self.own_tokens = 0  # of this rank in the step under way
        self.last_loss = math.nan
        self.numbers: dict[str, Any] = {}  # of the newest step whose numbers have arrived
        self.under_way: list[StepRecord] = []
        self.step_s = 0.0  # what the last step took, without saving to memory
        self.divergence = Divergence(config.divergence)
        self.prepared: Prepared | None = None  # until the optimizer has run
        self.spoiled: int | None = None  # the step that diverged: nothing from it on is worth saving
        self.rescue = Rescue(reporter, self._save_in_need)
        self._config_sha256 = hashlib.sha256(config.model_dump_json().encode()).hexdigest()

        reporter.phase(Phase.RENDEZVOUS)
        self.world = world = World.join()
        reporter.progress.rendezvous_ns = time.monotonic_ns()
        self.config = config = config.at(world.size)
        self.sums = LastSums(world.store, world.size, self.rescue.asked_s)
        self.log = StepLog(world.rank == 0, config.steps)

        reporter.phase(Phase.BUILD)
        try:
            self.degrees = config.parallelism.resolve(world.size)
            divisor = int(os.environ.get(environment.MICRO_DIVISOR) or 1)
            self.micro, self.accumulation = config.accumulation(world.size, divisor)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        layout.validate(config)
        self.source = data.build(config)
        self._no_costs = torch.zeros(3, dtype=torch.float64, device=world.device)
        model = models.build(config.model, config.seed, world.device)
        directory = os.environ.get(environment.CHECKPOINT_DIR, "")
        self.parallel = parallel.parallelize(
            model,
            self.degrees,
            config.parallelism,
            config.precision,
            world.device.type,
            parallel.StepShape(models.validate(config.model).context, self.micro, self.accumulation),
            # Beside the checkpoints, so that a world that restarts is cut as the one before it.
            Path(directory, "profile.json") if directory else None,
        )
        self.log.stages(self.parallel.stages)
        self.model: nn.Module = self.parallel.model
        self.optimizer = optimizer.ShardOptimizer(self.model, config.optimizer)
        self.session = Session(
            directory,
            {"model": self.model, "optimizer": self.optimizer},
            reporter,
            rank=world.rank,
            world_size=world.size,
            store=world.store,
            keep=config.checkpoint.keep,
        )
        reporter.progress.built_ns = time.monotonic_ns()

    def resume(self) -> None:
        """Go on from the newest valid checkpoint, or start."""
        found = self.session.restore(Resume.from_environment(self.config.model))
        if found is not None:
            self.step = found.manifest.step
            self.consumed = self._consumed(found)
            self.divergence.resume(found.manifest.losses)
            self._write_down(found.manifest.numbers)
            self.log.resumed(self.step, found.path, found.tier)
        self.source.skips = self._skips(found)
        self.reporter.progress.total_steps = self.config.steps
        self.reporter.resumed(self.step, found.path if found else None, found.tier if found else "")

    def run(self) -> int:
        """Train to the end, or until asked to stop. Returns the exit code."""
        every, steps, first = self.config.checkpoint.every, self.config.steps, self.step + 1
        self.reporter.obeys_stop()
        self.reporter.phase(Phase.STEP)
        self.session.boundary()
        if self.step == steps and self.session.from_memory:
            self.save()  # the end of the run, which only memory had
        if self.session.ram is not None and self.world.device.type == "cpu":
            self.rescue.watch()
        probe = Probe(self.session.objects, self.world.rank, self.reporter)
        probe.note(self.step, "restored")
        while self.step < steps:
            if stop_binds(self.reporter, self.step):
                return self._leave()
            self.one_step()
            probe.note(self.step, "after")
            if self.step == first:
                self.world.shorten_timeouts()
            if self.step % every == 0 or self.step == steps:
                self.save()
        self._finish()
        return ExitCode.OK

    def one_step(self) -> None:
        """Forward, backward, the last all-reduce, then the optimizer.

        Whoever passes the all-reduce needs no other rank to complete the step, so ranks never stand further apart
        than one step, and the laggards can roll forward (see `lastsums`).
        """
        began = time.monotonic()
        step = self.step + 1
        loss, tokens, own_tokens = self._forward_backward()
        self.session.settle()
        faults.at_step(step, self.world.rank, lambda: faults.gradients(self.model.parameters()))

        # Over the whole world: the same bits on all ranks, so all clip alike, all stop alike and all save alike.
        due = self.session.due(step)
        costs = self._no_costs
        if due:
            known = [self.session.save_s, self.step_s, float(not self.session.copied())]
            costs = torch.tensor(known, dtype=torch.float64).to(loss.device)
        totals = torch.stack([loss.double(), parallel.gradient_norm_squared(self.model).double(), *costs])
        self.prepared = Prepared(step, tokens, own_tokens, began)
        dist.all_reduce(totals)
        self.sums.passed(step, totals)
        with self.rescue.frozen:
            record = self._complete(self.prepared, totals)
            if due:
                save_s, step_s, not_copied = totals[2:].tolist()
                if not not_copied:
                    self.session.remember(step, self._common(), record.finite)
                    self.session.interval.saved(step, save_s, step_s)

    def _complete(self, prepared: Prepared, totals: Tensor) -> StepRecord:
        """Apply the gradients of a step, given what the last all-reduce has summed. Needs no other rank."""
        step, config = prepared.step, self.config
        norm = totals[1].sqrt()
        if config.optimizer.clipNorm is not None:
            factor = (config.optimizer.clipNorm / (norm + 1e-6)).clamp(max=1.0).float()
            parallel.scale_gradients_(self.model, factor)
        rate = optimizer.learning_rate(step, config.steps, config.optimizer)
        record = StepRecord(step, Reading(torch.stack([totals[0], norm])), prepared.tokens, prepared.own_tokens, rate)
        if record.reading.arrived():
            self._check_sound(record)

        self.rescue.mutating = True
        self.optimizer.step(rate)
        self.step = step
        self.consumed += config.batch.global_
        self.prepared = None
        self.rescue.mutating = False

        self.step_s = time.monotonic() - prepared.began
        self._publish(record, self.step_s)
        self.session.boundary()
        return record

    def save(self) -> None:
        """Start a checkpoint of the last completed step. Raises Diverged rather than keep what isn't finite."""
        self._settle(wait=True)
        self.session.save(self.step, self._common())

    def park(self) -> None:
        """After a failure: save the last completed step where others find it, and wait for the end."""
        self.rescue.park()
        self.session.drain(LAST_WRITE_LIMIT_S)

    def _save_in_need(self) -> int | None:
        """Save the last completed step; then the next one, if any rank got the sums that this one lacks."""
        prepared = self.prepared
        # While another thread than the main one saves, that may still be in the last all-reduce, and get through.
        raised = threading.current_thread() is threading.main_thread()
        self.sums.tell(last_word=prepared is None or raised)
        saved = self._save_last()
        if prepared is not None:
            sums = self.sums.ask(prepared.step)
            self.sums.tell(last_word=True)
            if sums is not None:
                self._complete(prepared, sums)
                saved = self._save_last() or saved
        return saved

    def _save_last(self) -> int | None:
        if self.spoiled is not None and self.step >= self.spoiled:
            return None
        if not all(record.finite() for record in [*self.under_way]):
            return None
        return self.session.rescue(self.step, self._common())

    def _common(self) -> dict[str, Any]:
        cursor = {
            "kind": self.source.kind,
            "version": self.source.version,
            "consumed": self.consumed,
            "skipped": [list(skipped) for skipped in self.source.skips.ranges],
            "fingerprint": self.source.fingerprint,
            "source": {},
        }
        return {
            "mesh": self.degrees,
            "data": cursor,
            "rng": {"kind": "keyed", "seed": self.config.seed},
            "batch": {
                "global": self.config.batch.global_,
                "micro": self.micro,
                "accumulation": self.accumulation,
            },
            "numbers": self.numbers if self.numbers.get("step") == self.step else {},
            "losses": self.divergence.losses(),
            "model": models.described(self.config.model),
            "config_sha256": self._config_sha256,
        }

    def _forward_backward(self) -> tuple[Tensor, int, int]:
        """(this rank's summand of the step's loss, valid tokens of the whole step, those that this rank speaks for).

        Gradients are complete sums after it.
        """
        tokens = self.source.valid_tokens(self.consumed, self.config.batch.global_)
        self.own_tokens = 0
        total = self.parallel.forward_backward(self._micro_batches(), self.accumulation, tokens)
        return total, tokens, self.own_tokens

    def _micro_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This rank's part of the step's samples, on its device: tokens and targets."""
        device, mesh = self.world.device, self.parallel.mesh
        first = mesh.data_rank * self.micro * self.accumulation
        for index in range(self.accumulation):
            start = first + index * self.micro
            batch = self.source.batch(self.consumed, range(start, start + self.micro))
            inputs, targets = self.parallel.own(batch.inputs), self.parallel.own(batch.targets)
            if mesh.speaks:
                whole = targets.shape == batch.targets.shape
                self.own_tokens += batch.valid_tokens if whole else int((targets != data.IGNORED).sum())
            yield inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)

    def _publish(self, record: StepRecord, seconds: float) -> None:
        self.under_way.append(replace(record, seconds=seconds))
        self._settle(wait=False)
        self.reporter.stepped(record.step, record.own_tokens)

    def _settle(self, wait: bool) -> None:
        """Publish what has arrived of the steps under way; of all but the newest step in any case."""
        while self.under_way and (wait or len(self.under_way) > 1 or self.under_way[0].reading.arrived()):
            record = self.under_way.pop(0)
            self._check_sound(record)
            loss, norm = record.reading.values()
            self.last_loss = loss
            self.reporter.loss(record.step, loss)
            self.log.step(record.step, loss, record.tokens, record.seconds)
            self.numbers = {
                "step": record.step,
                "loss": loss,
                "tokens": record.tokens,
                "seconds": round(record.seconds, 6),
                "lr": record.rate,
                "grad_norm": norm,
            }
            self.reporter.metrics(round=self.reporter.round, **self.numbers)

    def _check_sound(self, record: StepRecord) -> None:
        finding = self.divergence.finding(record.step, *record.reading.values())
        if finding:
            self.spoiled = record.step
            count = self.config.batch.global_
            start = self.consumed - (self.step - record.step + 1) * count
            skips = self.source.skips
            raise Diverged(finding, samples=(skips.position(start), skips.position(start + count - 1) + 1))

    def _write_down(self, numbers: dict[str, Any]) -> None:
        """Survivors may have completed a step whose numbers rank 0 didn't come to write down."""
        if numbers.get("step") != self.step:
            return
        self.numbers, self.last_loss = numbers, numbers["loss"]
        if self.reporter.last_step_written() < self.step:
            self.reporter.metrics(round=self.reporter.round, **numbers)

    def _skips(self, found: Checkpoint | None) -> Skips:
        """What the checkpoint left out already, and what the operator wants to be left out from here on."""
        asked = json.loads(os.environ.get(environment.SKIPPED) or "[]")
        before = Skips(found.manifest.data.get("skipped", [])) if found is not None else Skips()
        return before.resumed(self.consumed, asked)

    def _consumed(self, found: Checkpoint) -> int:
        """Samples consumed by the checkpoint. Raises DataError if they were samples of other data."""
        cursor = found.manifest.data
        if not cursor:
            return 0  # weights from elsewhere, which have seen none of our data
        for key, now in (("kind", self.source.kind), ("version", self.source.version)):
            if cursor.get(key) != now:
                raise DataError(
                    f"checkpoint {found.path} was made with data {key} {cursor.get(key)!r}, now it is {now!r}"
                )
        if cursor.get("fingerprint") != self.source.fingerprint:
            raise DataError(
                f"the data has changed since checkpoint {found.path} was made: its order can't be continued. "
                f"Restore the data, or start anew from these weights in another folder"
            )
        return int(cursor["consumed"])

    def _leave(self) -> int:
        """Stop on request: the step is saved once all ranks are here, and another world goes on with it."""
        self.save()
        self.reporter.phase(Phase.DRAIN)
        self.session.drain()
        self.reporter.send(wire.SAVED, {"step": self.step})
        dist.destroy_process_group()
        return ExitCode.SAVED

    def _finish(self) -> None:
        self._settle(wait=True)
        self.reporter.phase(Phase.DRAIN)
        digest = self.session.digest()
        if self.world.rank == 0 and self.reporter.output is not None:
            final = {"step": self.step, "round": self.reporter.round, "loss": finite(self.last_loss), "digest": digest}
            _write_whole(self.reporter.output / "final.json", json.dumps(final) + "\n")
        self.session.drain()
        dist.destroy_process_group()
        self.reporter.phase(Phase.DONE)


def read_config() -> TrainingConfig:
    """The config that the agent passes. Raises ConfigError, all problems at once."""
    raw = os.environ.get(environment.CONFIG)
    if not raw:
        raise ConfigError(f"{environment.CONFIG} is not set: this loop is started by an agent, or with a config in it")
    try:
        return TrainingConfig.model_validate_json(raw)
    except ValidationError as error:
        problems = [f"training.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise ConfigError("; ".join(problems)) from None


def main() -> NoReturn:
    """Run this rank. Ends with SystemExit; after a failure the process ends here, with its last words said."""
    reporter = Reporter.from_environment()
    training = None
    try:
        training = Training(read_config(), reporter)
        training.resume()
        sys.exit(training.run())
    except Exception as error:  # noqa: BLE001 whatever it is, the agent gets to know it
        code = lastwords.say(reporter, error, training.step if training else 0)
        if training is not None:
            training.park()
    # Not by way of the interpreter's teardown: a broken process group can hang there.
    os._exit(code)


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


if __name__ == "__main__":
    main()
