"""The numbers of completed steps of our own loop: when they arrive, whether they are sound, and where they are written.

A device's numbers arrive a step or two late, and no step waits for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trainmaster.contract.config import TrainingConfig
from trainmaster.errors import Diverged
from trainmaster.loggers import Loggers
from trainmaster.parallel.blocks.loss_scale import exhausted
from trainmaster.rank.reporter import Reporter
from trainmaster.reduce.compressed_reducer import Reducer
from trainmaster.reduce.diloco_islands import Outer
from trainmaster.tools.profiling.profiler import Profiler
from trainmaster.train.measures.divergence import Divergence
from trainmaster.train.measures.gradient_noise_scale import NoiseScale
from trainmaster.train.measures.step_log import StepLog
from trainmaster.train.step_in_flight import StepRecord


class StepNumbers:
    """Publishes the numbers of steps in their order. `sends`: what sends less than all gradients, or islands, if there
    is either. `samples_of(step)` returns the samples of a step, as positions [first, end) in the order of the data."""

    def __init__(
        self,
        config: TrainingConfig,
        reporter: Reporter,
        log: StepLog,
        loggers: Loggers,
        profiler: Profiler,
        noise: NoiseScale | None,
        *,
        sends: Reducer | Outer | None,
        samples_of: Callable[[int], tuple[int, int]],
    ) -> None:
        self._reporter = reporter
        self._log = log
        self._loggers = loggers
        self._profiler = profiler
        self._noise = noise
        self._sends = sends
        self._samples_of = samples_of
        self._under_way: list[StepRecord] = []
        self._newest: dict[str, Any] = {}  # metrics of the newest step whose numbers have arrived
        self._spoiled: int | None = None  # the step that diverged: nothing from it on is worth saving
        self.last_loss = math.nan
        self.divergence = Divergence(config.divergence)

    def publish(self, record: StepRecord, seconds: float) -> None:
        """Publish the numbers of a step as soon as they have arrived. `seconds`: how long it took. Raises Diverged."""
        self._under_way.append(replace(record, seconds=seconds))
        self.settle(wait=False)
        self._reporter.stepped(record.step, record.own_tokens)

    def settle(self, wait: bool) -> None:
        """Publish the numbers that have arrived, or, with `wait`, all numbers. Only the newest step may stay
        unpublished. Raises Diverged."""
        while self._under_way and (wait or len(self._under_way) > 1 or self._under_way[0].reading.arrived()):
            record = self._under_way.pop(0)
            self.check_sound(record)
            self._profiler.granted(record.step, record.to_record())
            loss, norm, _ = record.numbers()
            self.last_loss = loss
            self._reporter.loss(record.step, loss)
            self._log.step(record.step, loss, record.tokens, record.seconds)
            utilization = self._log.utilization.numbers(record.seconds) if self._log.utilization is not None else {}
            self._reporter.progress.mfu = utilization.get("mfu", 0.0)
            self._newest = {
                **record.metrics(),
                **self._sent(),
                **self._noise_scale(record, norm),
                **utilization,
            }
            self._reporter.metrics(round=self._reporter.round, **self._newest)
            self._loggers.step(self._newest)

    def check_sound(self, record: StepRecord) -> None:
        """Raise Diverged, with the samples of the step, if its numbers show that training diverges."""
        loss, norm, besides = record.numbers()
        compared = None if besides.get("skipped") else norm
        finding = self.divergence.finding(record.step, loss, compared) or exhausted(record.step, besides)
        if finding:
            self._spoiled = record.step
            raise Diverged(finding, samples=self._samples_of(record.step))

    def are_sound_at(self, step: int) -> bool:
        """Return whether the state after `step`, the newest one, is worth saving. It waits for the device."""
        if self._spoiled is not None and step >= self._spoiled:
            return False
        return all(record.finite() for record in [*self._under_way])

    def of(self, step: int) -> dict[str, Any]:
        """Return the numbers of `step` if it is the newest one that was published, else {}."""
        return self._newest if self._newest.get("step") == step else {}

    def write_restored(self, step: int, numbers: dict[str, Any]) -> None:
        """Write the numbers of the step that was restored, if rank 0 had not written them before the failure."""
        if numbers.get("step") != step:
            return
        self._newest, self.last_loss = numbers, numbers["loss"]
        if self._reporter.last_step_written() < step:
            self._reporter.metrics(round=self._reporter.round, **numbers)
            self._loggers.step(numbers)

    def _sent(self) -> dict[str, int]:
        """Return the bytes that a step sends, if gradients are compressed or there are islands, else {}."""
        if self._sends is None:
            return {}
        sent, plain = self._sends.sent
        return {"gradient_bytes": sent, "gradient_bytes_uncompressed": plain}

    def _noise_scale(self, record: StepRecord, norm: float) -> dict[str, float]:
        """Return the gradient noise scale in steps that have an estimate, else {}."""
        first = record.first_norm()
        if self._noise is None or not first or not norm:  # a step that fp16 drops has the norm 0
            return {}
        # As the mean of its own sequences: it was made as a part of the whole batch's.
        self._noise.add((first * self._noise.large / self._noise.small) ** 2, norm**2)
        value = self._noise.value
        return {} if value is None else {"noise_scale": value}
