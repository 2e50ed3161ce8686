"""TensorFlow: TF_CONFIG for MultiWorkerMirroredStrategy, whose chief is worker 0.

The ports of all workers stand in TF_CONFIG before any of them is open. Each rank chooses its own for one round.

Steps come from Keras where it drives the training (`fit`), else from traced functions: one that has an optimizer in it
is a step. An optimizer runs only while a function is traced, so the functions that are called at that moment are
marked, and each outermost call of a marked one counts. `strategy.run` traces in another thread, so all threads share
the list of functions that are being called.

A script may train one model after another in a process, as the folds of a cross-validation or the stages of a
fine-tuning. So the steps of an optimizer or a function that is new after the first step of those before it count on
from the last step.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from trainmaster.agent.frameworks.framework import Facts, Framework, Hook, Meeting, Profiler, Watch

CONFIG = "TF_CONFIG"
_FUNCTION = "tensorflow.python.eager.polymorphic_function.polymorphic_function"
_PROFILER = "tensorflow.python.profiler.profiler_v2"
_STRATEGY = "tensorflow.python.distribute.collective_all_reduce_strategy"


def peers(facts: Facts, addresses: Sequence[str]) -> dict[str, str]:
    """Return TF_CONFIG. A job of one rank gets none: MirroredStrategy drives the devices of its pod alone."""
    if facts.world_size == 1:
        return {}
    task = {"type": facts.role, "index": facts.rank}
    return {CONFIG: json.dumps({"cluster": {facts.role: list(addresses)}, "task": task})}


def defaults(facts: Facts) -> dict[str, str]:
    """Return what TPUClusterResolver() reads if it gets no argument: the TPU is that of this pod, not one in a network.

    Source: tensorflow/python/tpu/client/client.py and distribute/cluster_resolver/tpu/tpu_cluster_resolver.py.
    """
    return {"TPU_NAME": "local"} if facts.has_accelerator else {}


class _Steps:
    """Counts the steps of one process, in each of the three ways in which a script can train."""

    def __init__(self) -> None:
        self._calling: list[Any] = []  # traced functions that are being called now, in any thread
        self._thread = threading.local()  # depth: how many calls of such functions this thread is in
        self._training: WeakSet[Any] = WeakSet()  # those that have an optimizer in them
        # Number of the last step, by function, or by optimizer of eager steps.
        self._taken: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._start = 0  # the number after which the newest of them began
        self._before: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by optimizer of a fit: steps that it lacks
        self._optimizer: Any = None
        self._base = -1  # steps before this process; -1: no step is done yet
        self._known = False  # the optimizer of the first step has counted them
        # The callbacks of each `fit` that is under way. One that an exception has left is not told its end: they go.
        self._fits: WeakSet[Any] = WeakSet()
        self._batch = 0  # of the epoch, that is done
        self._restored = False  # what a fit goes on from is known
        self._step = 0  # the last one

    def watch_functions(self, module: Any, watch: Watch) -> None:
        call = module.Function.__call__

        @functools.wraps(call)
        def __call__(function: Any, *args: Any, **kwargs: Any) -> Any:
            depth = getattr(self._thread, "depth", 0)
            self._thread.depth = depth + 1
            self._calling.append(function)
            try:
                result = call(function, *args, **kwargs)
            finally:
                self._calling.remove(function)
                self._thread.depth = depth
            if not depth and function in self._training and not self._fits:
                self._take(function, watch)
            return result

        module.Function.__call__ = __call__

    def watch_optimizer(self, owner: Any, name: str, watch: Watch) -> None:
        apply = getattr(owner, name)

        @functools.wraps(apply)
        def applied(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._optimizer = optimizer
            self._training.update(self._calling)
            eager = not self._calling and not self._fits and _is_first_replica()
            result = apply(optimizer, *args, **kwargs)
            if eager:
                self._take(optimizer, watch)
            return result

        setattr(owner, name, applied)

    def watch_fit(self, callbacks: Any, watch: Watch) -> None:
        """Observe `fit`. Keras counts the batches of an epoch, which is right with `steps_per_execution`, too."""

        def begin(fit: Any, *_: Any) -> None:
            self._fits.add(fit)
            self._restored = False
            watch.building()

        def begin_epoch(fit: Any, *_: Any) -> None:
            self._batch = 0

        def end_batch(fit: Any, batch: int, *_: Any) -> None:
            taken = max(batch + 1 - self._batch, 1)
            self._batch = batch + 1
            if not self._restored:  # by now a callback such as BackupAndRestore has
                self._restored = True
                taken = _executed_at_once(_model(fit))
                self._begin(getattr(_model(fit), "optimizer", None), taken)
            self._step += taken
            self._tell(watch)

        def end(fit: Any, *_: Any) -> None:
            self._fits.discard(fit)
            if self._restored:  # functions that train after it count on from its last step
                self._taken.clear()
                self._start = self._step
            elif self._base < 0:  # a backup of its end was restored, so an earlier process has done its steps
                self._skip(getattr(_model(fit), "optimizer", None))

        _before(callbacks.CallbackList, "on_train_begin", begin)
        _before(callbacks.CallbackList, "on_epoch_begin", begin_epoch)
        _before(callbacks.CallbackList, "on_train_batch_end", end_batch)
        _before(callbacks.CallbackList, "on_train_end", end)

    def _skip(self, optimizer: Any) -> None:
        """Count the steps that an earlier process has done in a fit."""
        count = _counted(optimizer)
        if count:
            before = self._before.setdefault(optimizer, self._step if count <= self._step else 0)
            self._step = max(before + count, self._step)

    def _begin(self, optimizer: Any, taken: int) -> None:
        """Find out, after the first steps of a training, which step it goes on from: that of its optimizer, if this
        has counted further than the process, else the last one of the process."""
        count = _counted(optimizer)
        own = max((count or 0) - taken, 0)
        step = max(own + (self._before.get(optimizer, 0) if count is not None else 0), self._step)
        if self._base < 0:
            # Earlier processes did the fits before it, and the steps that its own optimizer has counted after those.
            step += own if own < self._step and optimizer not in self._before else 0
            self._base, self._known = step, count is not None
        if count is not None:
            self._before[optimizer] = step - own
        self._step = step

    def _take(self, what: Any, watch: Watch) -> None:
        if self._base < 0:
            self._begin(self._optimizer, 1)
            self._start = self._step
        last = self._taken.get(what)
        if last is None:
            # Those that train in turn, as the two of a GAN do, make one step together. A later one counts on.
            last = self._start = self._step if self._step > self._start + 1 else self._start
        self._taken[what] = last + 1
        if last + 1 > self._step:
            self._step = last + 1
            self._tell(watch)

    def _tell(self, watch: Watch) -> None:
        watch.completed(self._step, resumed=self._base if self._known else -1)


def _before(owner: Any, name: str, told: Callable[..., None]) -> None:
    """Let a method report its call before it runs, because a callback of the script may end the process in it."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        told(self, *args, *kwargs.values())
        return original(self, *args, **kwargs)

    setattr(owner, name, method)


def _executed_at_once(model: Any) -> int:
    """Return the number of batches that each call of a model's training function takes."""
    number: Any = getattr(model, "_steps_per_execution", None)
    if number is None:
        number = getattr(model, "steps_per_execution", 1)
    try:
        return max(int(number.numpy() if hasattr(number, "numpy") else number), 1)
    except (TypeError, ValueError):
        return 1


def _counted(optimizer: Any) -> int | None:
    """Return the number of steps that an optimizer has counted, with those of a checkpoint. None: it counts none."""
    try:
        return int(optimizer.iterations.numpy())
    except Exception:  # noqa: BLE001  an optimizer that is not built, or of another kind, counts nothing
        return None


def _model(fit: Any) -> Any:
    return getattr(fit, "model", None) or getattr(fit, "_model", None)


def _is_first_replica() -> bool:
    """Return True if this thread runs the first of the replicas of this process, or no replica.

    In an eager `strategy.run`, each replica has a thread of its own and applies the same optimizer.
    """
    try:
        context = sys.modules["tensorflow"].distribute.get_replica_context()
        here = len(context.strategy.extended.worker_devices)  # the ids count through all processes
        return int(context.replica_id_in_sync_group) % here == 0
    except Exception:  # noqa: BLE001  outside of replicas, or where the id is a symbol
        return True


_steps = _Steps()


def _watch_strategy(module: Any, watch: Watch) -> None:
    original = module.CollectiveAllReduceStrategy.__init__

    @functools.wraps(original)
    def __init__(strategy: Any, *args: Any, **kwargs: Any) -> None:
        original(strategy, *args, **kwargs)
        watch.met()

    module.CollectiveAllReduceStrategy.__init__ = __init__


def _watch_keras(module: Any, watch: Watch) -> None:
    _steps.watch_optimizer(module.BaseOptimizer, "apply", watch)


def _watch_tf_keras(module: Any, watch: Watch) -> None:
    _steps.watch_optimizer(module._BaseOptimizer, "apply_gradients", watch)


def _watch_legacy(module: Any, watch: Watch) -> None:
    _steps.watch_optimizer(module.OptimizerV2, "apply_gradients", watch)


def _meets_by_environment(args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    """Return True if a strategy takes the other ranks from TF_CONFIG, and there is none: each rank trains alone."""
    resolver = args[1] if len(args) > 1 else given.get("cluster_resolver")
    by_config = resolver is None or type(resolver).__name__ == "TFConfigClusterResolver"
    return by_config and CONFIG not in os.environ


def _start_profiler(folder: str) -> None:
    sys.modules["tensorflow"].profiler.experimental.start(folder)


def _stop_profiler(_: None, folder: str) -> None:
    sys.modules["tensorflow"].profiler.experimental.stop()


def _name_step(step: int) -> Any:
    return sys.modules["tensorflow"].profiler.experimental.Trace("step", step_num=step, _r=1)


STEPS: Mapping[str, Hook] = {
    _FUNCTION: _steps.watch_functions,
    "keras.src.callbacks.callback_list": _steps.watch_fit,
    "keras.src.optimizers.base_optimizer": _watch_keras,
    "tf_keras.src.callbacks": _steps.watch_fit,
    "tf_keras.src.optimizers.optimizer": _watch_tf_keras,
    "tf_keras.src.optimizers.legacy.optimizer_v2": _watch_legacy,
}
"""The hooks that see the steps of TensorFlow and Keras, however the ranks meet."""

PROFILER = Profiler("tensorflow", _start_profiler, _stop_profiler, _name_step, {_PROFILER: "start"})

TENSORFLOW = Framework(
    "TensorFlow",
    ("tensorflow",),
    defaults=defaults,
    peers=peers,
    addresses=True,
    hooks={_STRATEGY: _watch_strategy, **STEPS},
    meeting={_STRATEGY: Meeting("CollectiveAllReduceStrategy.__init__", _meets_by_environment)},
    profiler=PROFILER,
)
