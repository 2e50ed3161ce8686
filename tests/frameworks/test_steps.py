"""How the steps of scripts are seen: with stand-ins that call what TensorFlow and XGBoost call."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trainmaster.agent.frameworks import find, tensorflow, xgboost


class Told:
    """Keeps what hooks tell."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []  # (step, after which this process began)

    def met(self) -> None: ...

    def building(self) -> None: ...

    @contextlib.contextmanager
    def one_step(self, owner: Any, count: Callable[[Any], int | None]) -> Iterator[None]:
        before = count(owner) or 0
        yield
        self.completed(count(owner) or 0, resumed=before)

    def completed(self, step: int, *, resumed: int = -1) -> None:
        self.steps.append((step, resumed))


class Number:
    def __init__(self, value: int) -> None:
        self.value = value

    def numpy(self) -> int:
        return self.value


class Function:
    """A traced function: its body runs in the first call alone."""

    def __init__(self, body: Callable[[], None], each: Callable[[], None] = lambda: None) -> None:
        self.body, self.each, self.traced = body, each, False

    def __call__(self) -> None:
        if not self.traced:
            self.traced = True
            self.body()
        self.each()


class Optimizer:
    def __init__(self, restored: int = 0) -> None:
        self.iterations = Number(restored)

    def apply(self) -> None: ...


class CallbackList:
    def __init__(self, model: Any) -> None:
        self.model = model

    def on_train_begin(self, logs: Any = None) -> None: ...

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None: ...

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...

    def on_train_end(self, logs: Any = None) -> None: ...


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def world(told: Told) -> Any:
    """Fresh classes that are watched: Function, Optimizer, CallbackList."""
    classes = {base.__name__: type(base.__name__, (base,), {}) for base in (Function, Optimizer, CallbackList)}
    module: Any = types.SimpleNamespace(**classes)
    steps = tensorflow._Steps()
    steps.watch_functions(module, told)
    steps.watch_optimizer(module.Optimizer, "apply", told)
    steps.watch_fit(module, told)
    return module


def trained(world: Any, restored: int = 0, *, in_thread: bool = False) -> Any:
    """A traced function that trains: each call counts in its optimizer, as in TensorFlow's graph."""
    optimizer = world.Optimizer(restored)

    def trace() -> None:
        if in_thread:  # as strategy.run does
            thread = threading.Thread(target=optimizer.apply)
            thread.start()
            thread.join()
        else:
            optimizer.apply()

    def count() -> None:
        optimizer.iterations.value += 1

    return world.Function(trace, count)


@pytest.mark.parametrize("in_thread", [False, True])
def test_each_call_of_a_function_with_an_optimizer_in_it_is_a_step(world: Any, told: Told, in_thread: bool) -> None:
    train = trained(world, in_thread=in_thread)
    evaluate = world.Function(lambda: None)
    for _ in range(3):
        train()
        evaluate()
    assert told.steps == [(1, 0), (2, 0), (3, 0)]


def test_a_function_within_another_is_no_step_of_its_own(world: Any, told: Told) -> None:
    inner = trained(world)
    outer = world.Function(lambda: None, inner)
    outer()
    outer()
    assert told.steps == [(1, 0), (2, 0)]


def test_two_functions_that_train_in_turn_make_one_step(world: Any, told: Told) -> None:
    generator, critic = trained(world), trained(world)
    for _ in range(2):
        critic()
        generator()
    assert told.steps == [(1, 0), (2, 0)]


def test_a_restored_optimizer_says_after_which_step_the_process_began(world: Any, told: Told) -> None:
    train = trained(world, restored=40)
    train()
    train()
    assert told.steps == [(41, 40), (42, 40)]


def test_eager_steps_are_those_of_the_optimizer(world: Any, told: Told) -> None:
    optimizer = world.Optimizer()
    for _ in range(2):
        optimizer.apply()
    assert told.steps == [(1, 0), (2, 0)]


@pytest.mark.parametrize("framework", ["TensorFlow", "Horovod"])
def test_steps_of_keras_are_seen_in_jobs_of_each_framework_that_trains_with_it(
    monkeypatch: pytest.MonkeyPatch, told: Told, framework: str
) -> None:
    monkeypatch.setattr(tensorflow, "_steps", tensorflow._Steps())
    module: Any = types.SimpleNamespace(BaseOptimizer=type("BaseOptimizer", (Optimizer,), {}))
    find(framework).hooks["keras.src.optimizers.base_optimizer"](module, told)
    optimizer = type("Adam", (module.BaseOptimizer,), {})()
    optimizer.apply()
    optimizer.apply()
    assert told.steps == [(1, 0), (2, 0)]


def fit(world: Any, restored: int, epochs: list[list[int]], at_once: int = 1, optimizer: Any = None) -> Any:
    """A `fit` whose callbacks restore its optimizer when it begins. epochs: the batches that callbacks hear of. Return
    the optimizer."""
    optimizer = world.Optimizer() if optimizer is None else optimizer
    callbacks = world.CallbackList(types.SimpleNamespace(optimizer=optimizer, steps_per_execution=at_once))
    callbacks.on_train_begin()
    optimizer.iterations.value = restored
    for epoch, batches in enumerate(epochs):
        callbacks.on_epoch_begin(epoch)
        for batch in batches:
            optimizer.iterations.value += at_once
            callbacks.on_train_batch_end(batch, logs={})
    callbacks.on_train_end()
    return optimizer


def test_keras_counts_the_batches_of_all_epochs(world: Any, told: Told) -> None:
    fit(world, 0, [[0, 1], [0, 1]])
    assert [step for step, _ in told.steps] == [1, 2, 3, 4]


def test_several_batches_of_one_execution_are_several_steps(world: Any, told: Told) -> None:
    fit(world, 0, [[3, 7], [3, 7]], at_once=4)
    assert [step for step, _ in told.steps] == [4, 8, 12, 16]


def test_a_backup_that_is_restored_in_the_middle_of_an_epoch_goes_on_where_it_was(world: Any, told: Told) -> None:
    fit(world, 25, [[5, 6], [0]])
    assert told.steps == [(26, 25), (27, 25), (28, 25)]


def test_the_training_function_of_a_fit_is_not_counted_beside_it(world: Any, told: Told) -> None:
    train = trained(world)
    callbacks = world.CallbackList(types.SimpleNamespace(optimizer=world.Optimizer(), steps_per_execution=1))
    callbacks.on_train_begin()
    callbacks.on_epoch_begin(0)
    callbacks.model.optimizer.iterations.value = 1
    train()
    callbacks.on_train_batch_end(0)
    assert told.steps == [(1, 0)]


def test_steps_after_a_fit_that_an_exception_has_left_are_seen(world: Any, told: Told) -> None:
    """Keras does not call `on_train_end` then. The script catches the exception, and trains on by itself."""
    train = trained(world)
    world.CallbackList(types.SimpleNamespace(optimizer=world.Optimizer())).on_train_begin()
    train()
    train()
    assert told.steps == [(1, 0), (2, 0)]


def test_a_second_fit_with_a_new_optimizer_counts_on(world: Any, told: Told) -> None:
    fit(world, 0, [[0, 1, 2]])
    fit(world, 0, [[0, 1]])
    assert told.steps == [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0)]


def test_a_second_fit_with_the_same_optimizer_counts_on_once(world: Any, told: Told) -> None:
    fit(world, 0, [[0]])
    second = fit(world, 0, [[0, 1]])
    fit(world, second.iterations.value, [[0]], optimizer=second)
    assert [step for step, _ in told.steps] == [1, 2, 3, 4]


def test_a_model_that_is_loaded_with_its_count_counts_on_once(world: Any, told: Told) -> None:
    fit(world, 0, [[0, 1]])
    fit(world, 2, [[0]])
    assert [step for step, _ in told.steps] == [1, 2, 3]


def test_an_older_count_that_is_loaded_does_not_bring_steps_back(world: Any, told: Told) -> None:
    fit(world, 0, [[0, 1, 2]])
    fit(world, 1, [[0]])
    assert [step for step, _ in told.steps] == [1, 2, 3, 4]


def test_fits_that_an_earlier_process_has_done_are_counted_where_their_backups_are_restored(
    world: Any, told: Told
) -> None:
    fit(world, 60, [])
    fit(world, 30, [[0, 1]])
    assert told.steps == [(91, 90), (92, 90)]


def test_folds_of_one_length_that_an_earlier_process_has_done_are_all_counted(world: Any, told: Told) -> None:
    fit(world, 20, [])
    fit(world, 20, [])
    fit(world, 0, [[0]])
    assert told.steps == [(41, 40)]


def test_a_new_function_after_a_fit_and_after_another_function_counts_on(world: Any, told: Told) -> None:
    fit(world, 0, [[0, 1]])
    for train in (trained(world), trained(world)):
        train()
        train()
    assert told.steps == [(step, 0) for step in range(1, 7)]


def test_the_resumed_step_is_not_told_where_an_optimizer_counts_none(world: Any, told: Told) -> None:
    callbacks = world.CallbackList(types.SimpleNamespace(optimizer=object(), steps_per_execution=1))
    callbacks.on_train_begin()
    callbacks.on_epoch_begin(0)
    callbacks.on_train_batch_end(0)
    assert told.steps == [(1, -1)]


@pytest.mark.parametrize("process", [0, 1])
def test_an_eager_step_of_several_replicas_is_one_step(
    monkeypatch: pytest.MonkeyPatch, world: Any, told: Told, process: int
) -> None:
    replica = threading.local()
    strategy = types.SimpleNamespace(extended=types.SimpleNamespace(worker_devices=("CPU:0", "CPU:1")))

    def get_replica_context() -> Any:
        return types.SimpleNamespace(strategy=strategy, replica_id_in_sync_group=replica.number)

    distribute = types.SimpleNamespace(get_replica_context=get_replica_context)
    monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(distribute=distribute))
    optimizer = world.Optimizer()

    def run(number: int) -> None:
        replica.number = number
        optimizer.apply()

    for _ in range(2):
        for number in (2 * process, 2 * process + 1):
            thread = threading.Thread(target=run, args=(number,))
            thread.start()
            thread.join()
    assert told.steps == [(1, 0), (2, 0)]


class Booster:
    def __init__(self, rounds: int = 0) -> None:
        self.rounds = rounds

    def num_boosted_rounds(self) -> int:
        return self.rounds


def boost(module: Any, rounds: int, model: Booster) -> None:
    """What `xgboost.train` does with its callbacks."""
    container = module.CallbackContainer()
    for epoch in range(rounds):
        model.rounds += 1
        container.after_iteration(model, epoch)


@pytest.fixture
def boosting(told: Told) -> Any:
    class CallbackContainer:
        def after_iteration(self, model: Any, epoch: int) -> bool:
            return False

    module: Any = types.SimpleNamespace(CallbackContainer=CallbackContainer)
    xgboost._count_rounds(module, told)
    return module


def test_rounds_of_a_further_model_count_on(boosting: Any, told: Told) -> None:
    for _ in range(3):  # each container is freed before the next one, which may get its address
        boost(boosting, 2, Booster())
    assert told.steps == [(step, 0) for step in range(1, 7)]


def test_rounds_of_a_model_that_is_trained_in_chunks_are_counted_once(boosting: Any, told: Told) -> None:
    for chunk in (20, 22, 24):
        boost(boosting, 2, Booster(chunk))
    assert told.steps == [(step, 20) for step in range(21, 27)]


def test_boosting_rounds_are_steps_also_those_of_a_model_that_goes_on(boosting: Any, told: Told) -> None:
    rounds = iter([31, 32])
    model = types.SimpleNamespace(num_boosted_rounds=lambda: next(rounds))
    container = boosting.CallbackContainer()
    container.after_iteration(model, 0)
    container.after_iteration(model, 1)
    assert told.steps == [(31, 30), (32, 30)]


@pytest.mark.parametrize("framework", ["DeepSpeed", "PyTorch", "HuggingFace", "Horovod"])
def test_steps_of_deepspeeds_engine_are_seen_in_jobs_of_each_framework_that_trains_with_torch(
    told: Told, framework: str
) -> None:
    """A step that raises is none."""

    class DeepSpeedEngine:
        global_steps = 30

        def _take_model_step(self, lr_kwargs: Any, block_eigenvalue: Any = None) -> str:
            if lr_kwargs is None:
                raise ValueError
            self.global_steps += 1
            return "taken"

    module: Any = types.SimpleNamespace(DeepSpeedEngine=DeepSpeedEngine)
    find(framework).hooks["deepspeed.runtime.engine"](module, told)
    engine = type("PipelineEngine", (DeepSpeedEngine,), {})()
    assert engine._take_model_step({}, block_eigenvalue={}) == "taken"
    with pytest.raises(ValueError):
        engine._take_model_step(None)
    assert engine._take_model_step({}) == "taken"
    assert told.steps == [(31, 30), (32, 31)]
