"""Our own training loop, which a rank of the framework Trainmaster runs (`python -m trainmaster.train.loop`)."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainmaster import data, models, parallel
from trainmaster.checkpoint.state import island_names
from trainmaster.checkpoint.state.checkpoint_session import LAST_WRITE_S, Session
from trainmaster.checkpoint.state.prove_digests import Probe
from trainmaster.checkpoint.state.resume_conditions import Resume
from trainmaster.contract.config import PipelineConfig, TrainingConfig
from trainmaster.contract.sample_unit import unit_of
from trainmaster.contract.wire import channel as wire
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.contract.wire.progress_record import Phase
from trainmaster.data import data_position
from trainmaster.data.skipped_samples import Skips
from trainmaster.errors import ConfigError
from trainmaster.host import allocator
from trainmaster.loggers import Loggers
from trainmaster.loggers.logger_queue import LAST_WRITE_LIMIT_S
from trainmaster.models import allowed_parallelism
from trainmaster.optim import learning_rate, optimizer
from trainmaster.parallel.blocks.loss_scale import LossScale
from trainmaster.parallel.collectives import all_reduce_
from trainmaster.rank import exception_verdict, injected_faults
from trainmaster.rank.reporter import Reporter
from trainmaster.reduce.diloco_islands import Outer
from trainmaster.tools.profiling.profiler import Profiler
from trainmaster.train import auto_micro_batch, determinism
from trainmaster.train.after_failure.rescue import Rescue
from trainmaster.train.after_failure.roll_forward import LastSums
from trainmaster.train.after_failure.save_after_failure import save_after_failure
from trainmaster.train.async_transfer import Reading, to_device
from trainmaster.train.final_result import write_final_result
from trainmaster.train.initial_weights import InitialWeights
from trainmaster.train.manifest_fields import manifest_fields
from trainmaster.train.measures import memory_report
from trainmaster.train.measures.evaluation import Evaluation
from trainmaster.train.measures.gradient_noise_scale import NoiseScale
from trainmaster.train.measures.mfu import Utilization
from trainmaster.train.measures.step_log import StepLog
from trainmaster.train.passed_config import read_config
from trainmaster.train.process_group import World
from trainmaster.train.scheduled_evaluations import ScheduledEvaluations
from trainmaster.train.step_gradients import StepGradients
from trainmaster.train.step_in_flight import Prepared, StepRecord
from trainmaster.train.step_numbers import StepNumbers
from trainmaster.train.stop_request import stop_binds


class Training:
    """One rank's part of a run, from the rendezvous to the last step."""

    def __init__(self, config: TrainingConfig, reporter: Reporter) -> None:
        self.reporter = reporter
        self.step = 0  # completed: the boundary that the parameters and the optimizer stand at
        self.first = 1  # step of this round
        self.consumed = 0  # samples
        self.step_s = 0.0  # what the last step took, without saving to memory
        self.prepared: Prepared | None = None  # until the optimizer has run
        self.rescue = Rescue(reporter, lambda: save_after_failure(self))
        self.config_sha256 = hashlib.sha256(config.model_dump_json().encode()).hexdigest()

        determinism.enforce(config)
        # Each rank refuses a model that it can't build before any of them waits for another.
        self.described = models.described(config.model)
        reporter.phase(Phase.RENDEZVOUS)
        self.world = world = World.join(config.device)
        reporter.progress.rendezvous_ns = time.monotonic_ns()
        self.config = config = config.at(world.size)
        self.sums = LastSums(world.store, world.size, self.rescue.asked_s)
        self.log = StepLog(world.rank == 0, config.steps, unit_of(config.data.source))
        self.log.print_note(world.words)
        self.profiler = Profiler(config.profile, reporter, world, config.steps)
        directory = os.environ.get(environment.CHECKPOINT_DIR, "")
        # Beside the checkpoints: what a world that restarts needn't find out again, and wouldn't find the same.
        beside = Path(directory) if directory else None
        self.loggers = Loggers(
            config.loggers if world.rank == 0 else None,
            reporter.output,
            reporter.event,
            beside,
            config.model_dump(mode="json", exclude={"loggers"}),
        )

        reporter.phase(Phase.BUILD)
        try:
            self.degrees = config.parallelism.resolve(world.size)
            allowed_parallelism.validate(config)
            config, words = auto_micro_batch.settle(config, world, beside and beside / "micro.json")
            divisor = int(os.environ.get(environment.MICRO_DIVISOR) or 1)
            self.micro, self.accumulation = config.accumulation(world.size, divisor)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self.log.print_note(words)
        self.noise = NoiseScale.of(config, self.degrees, self.micro, self.accumulation)
        self.source = data.build(config, beside, reporter.beat)
        evaluation: Evaluation | None = None
        if config.evaluation is not None:
            # A pipeline computes as many sequences as in a step, and only so.
            rows = self.micro * (self.accumulation if self.degrees.get("pp", 1) > 1 else 1)
            evaluation = Evaluation(config, config.evaluation, rows, beside, reporter.beat)
        self._no_costs = torch.zeros(4, dtype=torch.float64, device=world.device)
        # Of what has values now, a checkpoint would replace all but buffers.
        model, undrawn = models.build_undrawn(config.model, config.seed, world.device)
        self.initial_weights = InitialWeights(undrawn, config.seed)
        if (config.parallelism.pipeline or PipelineConfig()).balance == "Profile":
            self.initial_weights.draw(model)  # the stages are divided by what it takes to compute with them
        facts = models.facts(config.model)
        if world.rank == 0:
            self.log.utilization = Utilization.of(model, facts, config, world.size, world.device)
        shape = parallel.StepShape(facts.context, self.micro, self.accumulation)
        profile = beside and beside / "profile.json"
        self.parallel = parallel.of_job(model, config, world.size, world.device.type, shape, profile)
        self.reducer = self.parallel.reducer
        self.island = self.parallel.mesh.coordinate("island")
        self.outer = Outer(model, self.parallel.mesh, config.outer, config.steps) if config.outer is not None else None
        self.log.print_note(self.parallel.stages)
        self.log.print_note("the first step compiles the model's blocks before it trains" if config.compile else "")
        self.model: nn.Module = self.parallel.model
        self.optimizer = optimizer.ShardOptimizer(self.model, config.optimizer, config.precision)
        self.activations = memory_report.Activations(self.model)
        self.scale = LossScale(config.precision, world.device)
        self.gradients = StepGradients(
            config, self.parallel, self.source, self.scale, self.activations, self.noise, self.micro, self.accumulation
        )
        self.evaluations = ScheduledEvaluations(
            config,
            evaluation,
            self.parallel,
            self.world.device,
            reporter,
            self.log,
            self.loggers,
            outer=self.outer,
            rescue=self.rescue,
        )
        self.numbers = StepNumbers(
            config,
            reporter,
            self.log,
            self.loggers,
            self.profiler,
            self.noise,
            sends=self.reducer or self.outer,
            samples_of=self._samples_of,
        )
        self.session = Session(
            directory,
            self._objects(),
            reporter,
            rank=world.rank,
            world_size=world.size,
            store=world.store,
            keep=config.checkpoint.keep,
        )
        reporter.progress.built_ns = time.monotonic_ns()

    def _objects(self) -> dict[str, Any]:
        """Return the objects that checkpoints hold, by name."""
        if self.outer is not None:
            own = island_names.prefix(self.parallel.mesh.coordinate("island"))
            return {
                "model": self.outer.parameters,
                "outer.momentum": self.outer.momentum,
                f"{own}model": self.model,
                f"{own}optimizer": self.optimizer,
            }
        kept = {"reducer": self.reducer} if self.reducer is not None and self.reducer.has_state else {}
        return {"model": self.model, "optimizer": self.optimizer, **kept}

    def resume(self) -> None:
        """Restore the newest valid checkpoint, or start from the beginning if there is none."""
        found = self.session.restore(Resume.from_environment(self.config.model, self.config.optimizer.name))
        drawn = self.initial_weights.draw(self.model, self.session.restored(self.model))
        if self.outer is not None:
            self.outer.begin_with(drawn)
        self.loggers.begin(found.manifest.step if found is not None else 0)
        asked = json.loads(os.environ.get(environment.SKIPPED) or "[]")
        if found is not None:
            self.step = found.manifest.step
            say = self.reporter.event if self.world.rank == 0 else (lambda reason, message: None)
            self.consumed = data_position.read(self.source, found.manifest.data, f"checkpoint {found.path}", say, asked)
            self.numbers.divergence.resume(found.manifest.losses, found.manifest.norms)
            self.scale.load(found.manifest.scaler)
            if self.noise is not None:
                self.noise.load(found.manifest.noise)
            self.numbers.write_restored(self.step, found.manifest.numbers)
            if (scores := self.evaluations.scores) is not None:
                scores.load(found.manifest.evaluation)
                if scores.step == self.step:
                    self.evaluations.report()  # rank 0 may not have come to it
            self.log.resumed(self.step, found.path, found.tier)
        before = found.manifest.data.get("skipped", []) if found is not None else []
        self.source.skips = Skips(before).resumed(self.consumed, asked)
        self.first = self.step + 1
        self.reporter.progress.total_steps = self.config.steps
        self.reporter.resumed(self.step, found.path if found else None, found.tier if found else "")

    def run(self) -> int:
        """Train to the last step, or until asked to stop. Return the exit code."""
        every, first = self.config.checkpoint.every, self.first
        self.reporter.obeys_stop()
        self.reporter.phase(Phase.STEP)
        self.session.boundary()
        # Memory may have a step from before its evaluation, or the end of the run, which storage hasn't.
        if self.evaluations.evaluate(self.step, self.numbers) or (self._over() and self.session.from_memory):
            self.save()
        if self.session.ram is not None and self.world.device.type == "cpu":
            self.rescue.watch()
        probe = Probe(self.session.objects, self.world.rank, self.reporter)
        probe.note(self.step, "restored")
        while not self._over():
            if stop_binds(self.reporter, self.step):
                return self._leave()
            with self.profiler.step(self.step + 1):
                self.one_step()
            probe.note(self.step, "after")
            if self.step == first:
                self.world.shorten_timeouts()
            best = self.evaluations.evaluate(self.step, self.numbers)
            if best or self.step % every == 0 or self._over():
                self.save()
                probe.saved(self.session.drain)
        self._finish()
        return ExitCode.OK

    def one_step(self) -> None:
        """Compute forward, backward, the last all-reduce, and then the optimizer's step.

        A rank that gets past the all-reduce needs no other rank to complete the step. So ranks are never more than one
        step apart, and ranks that are behind can complete the step later (see `roll_forward`).
        """
        began = time.monotonic()
        step = self.step + 1
        if self.outer is not None:
            self.outer.begin(step)
        is_first = self.step < self.first
        loss, tokens, own_tokens = self.gradients.compute(step, self.consumed, self.world.device, is_first=is_first)
        if self.outer is not None:
            self.outer.wait()
        self.session.settle()
        injected_faults.at_step(step, self.world.rank, lambda: injected_faults.gradients(self.model.parameters()))

        # Over the whole world: with the same bits on all ranks, all of them clip, stop and save in the same way.
        due, to_record = self.session.due(step), self.profiler.wish(step)
        costs = self._no_costs
        if due or to_record:
            known = [self.session.save_s, self.step_s, float(not self.session.copied()), float(to_record)]
            costs = to_device(torch.tensor(known, dtype=torch.float64), loss.device)
        # Each island has a norm of its own.
        squared = torch.zeros(self.parallel.mesh.degree("island"), dtype=torch.float64, device=loss.device)
        squared[self.island] = parallel.gradient_norm_squared(self.model).double()
        if self.optimizer.joins:
            # While all ranks are here: who passes the last all-reduce needs none.
            everywhere = squared.clone()
            all_reduce_(everywhere)
            self.optimizer.orthogonalize(self._factor(self.scale.unscaled(everywhere[self.island].sqrt())))
        first = self.gradients.first_squared
        first = first if first is not None else squared.new_zeros(())
        totals = torch.cat([loss.double().reshape(1), costs, first.double().reshape(1), squared])
        self.prepared = Prepared(step, tokens, own_tokens, began)
        all_reduce_(totals)
        self.sums.passed(step, totals)
        with self.rescue.frozen:
            self.complete(self.prepared, totals)
            if due:
                save_s, step_s, not_copied = totals[1:4].tolist()
                if not not_copied:
                    # What resumes from memory writes down this step's numbers, if this process didn't come to it. A
                    # device's copy into host memory waits for the step anyway.
                    self.numbers.settle(wait=True)
                    self.session.remember(step, manifest_fields(self))
                    self.session.interval.saved(step, save_s, step_s)

    def complete(self, prepared: Prepared, totals: Tensor) -> None:
        """Apply the gradients of a step, with the sums of its last all-reduce. It needs no other rank."""
        step, config = prepared.step, self.config
        norms = totals[6:].sqrt()
        norm = self.scale.unscaled(norms[self.island])
        dropped = self.scale.overflowed(norm)
        factor = self._factor(norm)
        if factor is not None:
            parallel.scale_gradients_(self.model, factor)
        rate = learning_rate.learning_rate(step, config.steps, config.optimizer)
        largest = self.scale.unscaled(norms.max())
        first = self.scale.unscaled(totals[5].sqrt())
        told = [totals[0], largest, totals[4], first, *([self.scale.value.double()] if self.scale.on else [])]
        record = StepRecord(step, Reading(torch.stack(told)), prepared.tokens, prepared.own_tokens, rate)
        if record.reading.arrived():
            self.numbers.check_sound(record)

        self.rescue.mutating = True
        self.optimizer.step(rate, dropped)
        self.scale.update(dropped)
        self.parallel.completed()
        if self.outer is not None:
            self.outer.completed(step)
        self.step = step
        self.consumed += config.batch.global_
        self.prepared = None
        self.rescue.mutating = False

        self.step_s = time.monotonic() - prepared.began
        self.numbers.publish(record, self.step_s)
        self.session.boundary()

    def _factor(self, norm: Tensor) -> Tensor | None:
        """Return the factor of gradients with this norm, which clips them and removes the loss scale; None if it is
        1."""
        if self.config.optimizer.clipNorm > 0:
            return self.scale.unscaled(parallel.clip_factor(norm, self.config.optimizer.clipNorm))
        return 1 / self.scale.value if self.scale.on else None

    def _samples_of(self, step: int) -> tuple[int, int]:
        """Return the samples of a step of this round, as positions [first, end) in the order of the data."""
        count = self.config.batch.global_
        start, skips = self.consumed - (self.step - step + 1) * count, self.source.skips
        return skips.position(start), skips.position(start + count - 1) + 1

    def _over(self) -> bool:
        scores = self.evaluations.scores
        # Beyond its steps when they were lowered after a checkpoint.
        return self.step >= self.config.steps or (scores is not None and scores.stops)

    def save(self) -> None:
        """Start a checkpoint of the last completed step. Raises Diverged instead if the step's numbers are not
        finite."""
        self.numbers.settle(wait=True)
        self.session.save(self.step, manifest_fields(self), beside=True)

    def memory(self) -> str:
        """Return a sentence that says what takes this rank's memory, for when it is exhausted."""
        kept = [*(self.reducer.memory() if self.reducer is not None else ())]
        kept += self.outer.memory() if self.outer is not None else ()
        return memory_report.report(self.model, self.optimizer, kept, self.activations, self.world.device)

    def park(self) -> None:
        """After a failure, save the last completed step to the agent's memory, and wait until the process is ended."""
        self.rescue.park()
        self.session.drain(LAST_WRITE_S)

    def _leave(self) -> int:
        """Stop on request: save the step when all ranks have reached it. Another world continues from it."""
        self.save()
        self.reporter.phase(Phase.DRAIN)
        self.session.finish()
        self.loggers.close(LAST_WRITE_LIMIT_S)
        self.reporter.send(wire.SAVED, {"step": self.step, "kept": bool(self.session.url)})
        dist.destroy_process_group()
        return ExitCode.SAVED

    def _finish(self) -> None:
        self.numbers.settle(wait=True)
        self.log.print_note(self.noise.words() if self.noise is not None else "")
        self.reporter.phase(Phase.DRAIN)
        digest = self.session.digest()
        self.session.finish()
        if self.world.rank == 0:
            write_final_result(self.reporter, self.step, self.numbers.last_loss, digest)
        self.loggers.close(LAST_WRITE_LIMIT_S, finished=True)
        dist.destroy_process_group()
        self.reporter.phase(Phase.DONE)


def main() -> NoReturn:
    """Run this rank. It ends with SystemExit; after a failure, it first sends its last words to the agent."""
    allocator.keep_memory()
    reporter = Reporter.from_environment()
    training = None
    try:
        training = Training(read_config(), reporter)
        training.resume()
        sys.exit(training.run())
    except Exception as error:  # noqa: BLE001 whatever it is, the agent gets to know it
        of_memory = training.memory if training is not None else (lambda: "")
        code = exception_verdict.say(reporter, error, training.step if training else 0, of_memory)
        if training is not None:
            training.park()
    # Not by way of the interpreter's teardown: a broken process group can hang there.
    os._exit(code)


if __name__ == "__main__":
    main()
