"""The evaluations of a run of our own loop: made when they are due, reported, and the best one kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trainmaster.contract.config import TrainingConfig
from trainmaster.contract.wire.progress_record import Phase
from trainmaster.loggers import Loggers
from trainmaster.parallel.forward_and_backward import Parallel
from trainmaster.rank.reporter import Reporter
from trainmaster.reduce.diloco_islands import Outer
from trainmaster.train.after_failure.rescue import Rescue
from trainmaster.train.measures.early_stopping import Scores
from trainmaster.train.measures.evaluation import Evaluation
from trainmaster.train.measures.step_log import StepLog
from trainmaster.train.step_numbers import StepNumbers


class ScheduledEvaluations:
    """`evaluation`: None if the job asks for none. `outer`: None without islands."""

    def __init__(
        self,
        config: TrainingConfig,
        evaluation: Evaluation | None,
        parallel: Parallel,
        device: torch.device,
        reporter: Reporter,
        log: StepLog,
        loggers: Loggers,
        *,
        outer: Outer | None,
        rescue: Rescue,
    ) -> None:
        self._evaluation = evaluation
        self._parallel = parallel
        self._device = device
        self._reporter = reporter
        self._log = log
        self._loggers = loggers
        self._outer = outer
        self._rescue = rescue
        self._keep_best = config.checkpoint.keepBest
        self._every = config.evaluation.every if config.evaluation is not None else 0
        self._last_step = config.steps

    @property
    def scores(self) -> Scores | None:
        """The scores of the run; None if it has no evaluations."""
        return self._evaluation.scores if self._evaluation is not None else None

    def evaluate(self, step: int, numbers: StepNumbers) -> bool:
        """Evaluate the last completed step if it is due. Return True if it is to be saved as the best step so far.
        `numbers`: of the steps, which are published before."""
        evaluation = self._evaluation
        if evaluation is None or not self._due(step, evaluation.scores):
            return False
        numbers.settle(wait=True)
        self._reporter.phase(Phase.EVAL)
        with self._shown():
            loss = evaluation.loss(self._parallel, self._device, self._reporter.beat)
        is_best = evaluation.scores.add(step, loss)
        self.report()
        self._reporter.phase(Phase.STEP)
        return is_best and self._keep_best

    def _due(self, step: int, scores: Scores) -> bool:
        """Return True if the state after `step` is to be evaluated, and has not been. The last step always is."""
        return step > scores.step and (step % self._every == 0 or step == self._last_step)

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """A context in which the model has the parameters that a user will get."""
        if self._outer is None:
            yield
            return
        failure: Exception | None = None
        self._rescue.mutating = True
        with self._outer.shown():
            try:
                yield
            except Exception as error:  # noqa: BLE001 raised again below, when a rescue may save the last step
                failure = error
        self._rescue.mutating = False
        if failure is not None:
            raise failure

    def report(self) -> None:
        """Write the score of the last evaluation to the log, the metrics and the loggers."""
        scores = self.scores
        assert scores is not None
        self._log.evaluation(scores)
        self._reporter.metrics(round=self._reporter.round, step=scores.step, evaluation_loss=scores.loss)
        self._loggers.evaluation(scores.step, scores.loss)
