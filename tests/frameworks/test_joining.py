"""In a rank: variables that need the other ranks, and a second framework that is refused in a sentence."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from typing import Any, ClassVar

import pytest

from trainmaster.agent import frameworks
from trainmaster.agent.frameworks import jax, xgboost
from trainmaster.agent.frameworks.framework import Facts, numbers
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.causes_and_exit_codes import Cause
from trainmaster.rank import failure_message, framework_joining


class Nobody:
    """Watches nothing."""

    def met(self) -> None: ...

    def building(self) -> None: ...

    def completed(self, step: int, *, resumed: int = -1) -> None: ...


def be_rank(monkeypatch: pytest.MonkeyPatch, framework: str, world_size: int = 2) -> None:
    for name, value in numbers(Facts(0, world_size)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(environment.FRAMEWORK, framework)
    monkeypatch.setenv(environment.STORE, "127.0.0.1:1")
    monkeypatch.setenv(environment.ROUND, "4")


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Cause, str]]:
    """The last words that are told."""
    told: list[tuple[Cause, str]] = []
    monkeypatch.setattr(failure_message, "tell", lambda cause, message, _: told.append((cause, message)))
    return told


def load(monkeypatch: pytest.MonkeyPatch, framework: str, name: str, **content: Any) -> Any:
    """Have a rank of a framework import a module that has this content."""
    module = types.ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)
    for hooked, hook in framework_joining.hooks(frameworks.find(framework), Nobody()):
        if hooked == name:
            hook(module)
    return module


def test_a_process_that_is_no_rank_has_no_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.STORE, raising=False)
    assert framework_joining.of_this_rank() is None


def test_a_rank_that_is_alone_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    be_rank(monkeypatch, "JAX", world_size=1)
    monkeypatch.setattr(os, "environ", {**os.environ})
    framework_joining.join(frameworks.find("JAX"))
    changed = {name: value for name, value in os.environ.items() if name.startswith("JAX_")}
    assert set(changed) == {"JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS"}


def test_what_a_framework_makes_of_the_addresses_is_put_into_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    be_rank(monkeypatch, "TensorFlow")
    monkeypatch.setattr(os, "environ", {**os.environ})
    asked: list[str] = []

    def exchange(facts: Facts, own: str) -> list[str]:
        asked.append(own)
        return [own, "other:1"]

    monkeypatch.setattr(framework_joining.rank_addresses, "exchange", exchange)
    framework_joining.join(frameworks.find("PyTorch"))
    assert asked == []
    framework_joining.join(frameworks.find("TensorFlow"))
    assert asked[0] in os.environ["TF_CONFIG"]


def test_torchs_rendezvous_in_a_job_of_tensorflow_is_refused(
    monkeypatch: pytest.MonkeyPatch, words: list[tuple[Cause, str]]
) -> None:
    be_rank(monkeypatch, "TensorFlow")

    def init_process_group(*args: Any, **given: Any) -> str:
        return "met"

    package = types.ModuleType("torch.distributed")
    vars(package)["init_process_group"] = init_process_group
    monkeypatch.setitem(sys.modules, "torch.distributed", package)
    name = "torch.distributed.distributed_c10d"
    module = load(monkeypatch, "TensorFlow", name, init_process_group=init_process_group)
    assert module.init_process_group("gloo", "file:///shared/x", rank=0, world_size=2) == "met", "a way of its own"
    assert module.init_process_group("gloo", None, None, 2, 0, object()) == "met", "a store of its own"
    with pytest.raises(SystemExit):
        vars(package)["init_process_group"]("gloo")
    assert words == [
        (
            Cause.CONFIG_ERROR,
            "this job's framework is TensorFlow, and its script lets the ranks meet through PyTorch (torch.distributed."
            "distributed_c10d.init_process_group()): set spec.framework to PyTorch, or take that call out",
        )
    ]


def strategy() -> type:
    class CollectiveAllReduceStrategy:
        def __init__(self, cluster_resolver: Any = None, communication_options: Any = None) -> None: ...

    return CollectiveAllReduceStrategy


class TFConfigClusterResolver:
    """What reads TF_CONFIG."""


@pytest.mark.parametrize("arguments", [(), (None, "options"), (TFConfigClusterResolver(),)])
@pytest.mark.parametrize("framework", ["PyTorch", "DeepSpeed", "JAX"])
def test_tensorflows_workers_that_would_each_train_alone_are_refused(
    monkeypatch: pytest.MonkeyPatch, words: list[tuple[Cause, str]], framework: str, arguments: tuple[Any, ...]
) -> None:
    """tf.distribute.experimental's strategy passes both arguments by their places."""
    be_rank(monkeypatch, framework)
    name = "tensorflow.python.distribute.collective_all_reduce_strategy"
    module = load(monkeypatch, framework, name, CollectiveAllReduceStrategy=strategy())
    module.CollectiveAllReduceStrategy(cluster_resolver=object())
    with pytest.raises(SystemExit):
        module.CollectiveAllReduceStrategy(*arguments)
    assert "set spec.framework to TensorFlow" in words[0][1]


def test_a_rank_that_is_alone_may_use_every_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    be_rank(monkeypatch, "PyTorch", world_size=1)
    name = "tensorflow.python.distribute.collective_all_reduce_strategy"
    load(monkeypatch, "PyTorch", name, CollectiveAllReduceStrategy=strategy()).CollectiveAllReduceStrategy()


@pytest.mark.parametrize("framework", ["PyTorch", "DeepSpeed", "HuggingFace", "Trainmaster"])
def test_frameworks_of_one_family_meet_in_the_same_way(monkeypatch: pytest.MonkeyPatch, framework: str) -> None:
    be_rank(monkeypatch, framework)
    hooked = {name for name, _ in framework_joining.hooks(frameworks.find(framework), Nobody())}
    assert "torch.distributed.distributed_c10d" not in hooked


def known_clusters() -> type:
    class ClusterEnv:
        _cluster_types: ClassVar[list[type]] = []

        def __init_subclass__(cls) -> None:
            cls._cluster_types.append(cls)

    class SlurmCluster(ClusterEnv): ...

    return ClusterEnv


def test_jax_asks_our_cluster_first(monkeypatch: pytest.MonkeyPatch) -> None:
    be_rank(monkeypatch, "JAX", world_size=3)
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.7:21001")
    ClusterEnv: Any = known_clusters()
    load(monkeypatch, "JAX", "jax._src.clusters", ClusterEnv=ClusterEnv)
    first, second = ClusterEnv._cluster_types
    assert second.__name__ == "SlurmCluster"
    assert first.is_env_present()
    assert (first.get_coordinator_address(), first.get_process_count(), first.get_process_id()) == (
        "10.0.0.7:21001",
        3,
        0,
    )
    assert first.get_local_process_id() is None, "a rank on a CPU takes all devices that it has"


@pytest.mark.parametrize(("local", "ranks", "expected"), [(1, 2, 1), (0, 1, None)])
def test_each_of_several_ranks_of_jax_on_a_node_takes_the_device_of_its_local_rank(
    monkeypatch: pytest.MonkeyPatch, local: int, ranks: int, expected: int | None
) -> None:
    """Two pods of one rank on one machine are one node: both ranks see its devices."""
    be_rank(monkeypatch, "JAX")
    monkeypatch.setenv("LOCAL_RANK", str(local))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setenv(environment.RANKS_PER_POD, "1")
    monkeypatch.setattr(jax, "has_accelerator", lambda _: True)
    ClusterEnv: Any = known_clusters()
    load(monkeypatch, "JAX", "jax._src.clusters", ClusterEnv=ClusterEnv)
    assert ClusterEnv._cluster_types[0].get_local_process_id() == expected


def test_horovods_init_is_watched_also_where_it_was_imported_before_the_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    be_rank(monkeypatch, "Horovod")

    class HorovodBasics:
        def init(self, comm: Any = None) -> str:
            return f"initialized with {comm}"

    basics = HorovodBasics()
    imported = types.ModuleType("horovod.torch")
    vars(imported).update(init=basics.init, other=basics.__init__)
    monkeypatch.setitem(sys.modules, "horovod.torch", imported)
    met: list[str] = []
    monkeypatch.setattr(Nobody, "met", lambda _: met.append("met"))
    load(monkeypatch, "Horovod", "horovod.common.basics", HorovodBasics=HorovodBasics)
    assert vars(imported)["init"]([0, 1]) == "initialized with [0, 1]"
    assert met == ["met"]
    assert basics.init() == "initialized with None"
    assert met == ["met", "met"]


def test_horovods_ranks_that_would_each_train_alone_are_refused(
    monkeypatch: pytest.MonkeyPatch, words: list[tuple[Cause, str]]
) -> None:
    be_rank(monkeypatch, "PyTorch")

    class HorovodBasics:
        def init(self, comm: Any = None) -> str:
            return "initialized"

    module = load(monkeypatch, "PyTorch", "horovod.common.basics", HorovodBasics=HorovodBasics)
    assert module.HorovodBasics().init(object()) == "initialized", "a communicator of MPI"
    with pytest.raises(SystemExit):
        module.HorovodBasics().init()
    assert "set spec.framework to Horovod" in words[0][1]


def be_rank_of_xgboost(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    be_rank(monkeypatch, "XGBoost")
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("DMLC_TRACKER_URI", "10.0.0.7")
    monkeypatch.setenv("DMLC_TRACKER_PORT", "21001")


def broadcast(data: int | None, root: int) -> int:
    """Return what rank 0 has sent: its port, or 22002 in another rank."""
    assert root == 0
    return 22002 if data is None else data


def test_xgboosts_collective_takes_the_tracker_of_the_round_unless_it_is_given_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    be_rank_of_xgboost(monkeypatch, 1)
    given: list[dict[str, Any]] = []
    content = {"init": lambda **words: given.append(words), "finalize": lambda: None, "broadcast": broadcast}
    module = load(monkeypatch, "XGBoost", "xgboost.collective", **content)
    module.init(dmlc_retry=5)
    module.init(dmlc_tracker_uri="mine", dmlc_tracker_port=1)
    module.init(dmlc_communicator="federated")
    module.init(DMLC_TRACKER_URI="mine", DMLC_TRACKER_PORT=1)
    module.init(DMLC_TASK_ID="7", DMLC_RETRY=2)
    assert given == [
        {"dmlc_tracker_uri": "10.0.0.7", "dmlc_tracker_port": 21001, "dmlc_task_id": "000000001", "dmlc_retry": 5},
        {"dmlc_tracker_uri": "mine", "dmlc_tracker_port": 1},
        {"dmlc_communicator": "federated"},
        {"DMLC_TRACKER_URI": "mine", "DMLC_TRACKER_PORT": 1},
        {"dmlc_tracker_uri": "10.0.0.7", "dmlc_tracker_port": 22002, "DMLC_TASK_ID": "7", "DMLC_RETRY": 2},
    ]


class XGBoostError(ValueError):
    """What xgboost.collective.init raises."""


def put_in_place_of_xgboost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put as much there as a rank needs in order to join."""
    content = {"config_context": lambda **_: contextlib.nullcontext(), "core": types.SimpleNamespace()}
    content["core"].XGBoostError = XGBoostError
    monkeypatch.setitem(sys.modules, "xgboost", types.SimpleNamespace(**content))


@pytest.fixture
def no_xgboost(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place_of_xgboost(monkeypatch)


@pytest.mark.usefixtures("no_xgboost")
@pytest.mark.parametrize("reason", ["Failed to connect to the tracker.\n- Connection refused", "Invalid argument"])
def test_a_rank_joins_as_soon_as_rank_0_has_opened_xgboosts_tracker(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    be_rank_of_xgboost(monkeypatch, 1)
    monkeypatch.setattr(xgboost, "TRY_AGAIN_S", 0.0)
    tries: list[int] = []

    def init(**given: Any) -> None:
        tries.append(given["dmlc_retry"])
        if len(tries) < 3:
            raise XGBoostError(f"Bootstrap failed.\n- {reason}")

    content = {"init": init, "finalize": lambda: None, "broadcast": broadcast}
    module = load(monkeypatch, "XGBoost", "xgboost.collective", **content)
    if "tracker" in reason:
        module.init()
        assert tries == [1, 1, 1], "XGBoost's own second and third try come after 2 and 6 seconds"
    else:
        with pytest.raises(XGBoostError, match="Invalid argument"):
            module.init()
        assert tries == [1]


def be_rank_0_of_xgboost(monkeypatch: pytest.MonkeyPatch, done: list[str], all_leave: bool = True) -> tuple[Any, Any]:
    """Return (the collective, its tracker's class). What both of them do is added to `done`."""
    be_rank_of_xgboost(monkeypatch, 0)
    monkeypatch.setenv("DMLC_TRACKER_URI", "127.0.0.1")

    class RabitTracker:
        ports: ClassVar[list[int]] = []

        def __init__(self, port: int, **_: Any) -> None:
            self.ports.append(port)

        def start(self) -> None:
            done.append("the tracker starts")

        def wait_for(self, timeout: int) -> None:
            done.append("the tracker waits")
            if not all_leave:
                raise ValueError("timeout")

    monkeypatch.setitem(sys.modules, "xgboost.tracker", types.SimpleNamespace(RabitTracker=RabitTracker))
    content = {"init": lambda **_: done.append("joins"), "finalize": lambda: done.append("leaves")}
    module = load(monkeypatch, "XGBoost", "xgboost.collective", broadcast=broadcast, **content)
    return module, RabitTracker


@pytest.mark.usefixtures("no_xgboost")
@pytest.mark.parametrize("all_leave", [True, False])
def test_rank_0_keeps_xgboosts_tracker_open_until_the_others_have_left(
    monkeypatch: pytest.MonkeyPatch, all_leave: bool
) -> None:
    done: list[str] = []
    module, _ = be_rank_0_of_xgboost(monkeypatch, done, all_leave)
    for _ in range(2):
        module.init()
        module.finalize()
    assert done == ["the tracker starts", "joins", "leaves", "the tracker waits"] * 2


@pytest.mark.usefixtures("no_xgboost")
def test_rank_0_opens_a_tracker_at_another_port_for_each_context_of_xgboost(monkeypatch: pytest.MonkeyPatch) -> None:
    module, tracker = be_rank_0_of_xgboost(monkeypatch, [])
    sent: list[int] = []
    module.broadcast = lambda data, root: sent.append(data) or data
    for _ in range(3):
        module.init()
        module.finalize()
    assert tracker.ports == [21001, *sent[:2]]
    assert len({21001, *sent}) == 4


@pytest.mark.usefixtures("no_xgboost")
def test_another_rank_joins_the_next_context_of_xgboost_where_rank_0_has_said(monkeypatch: pytest.MonkeyPatch) -> None:
    be_rank_of_xgboost(monkeypatch, 1)
    ports: list[int] = []

    def init(**given: Any) -> None:
        ports.append(given["dmlc_tracker_port"])

    content = {"init": init, "finalize": lambda: None, "broadcast": broadcast}
    module = load(monkeypatch, "XGBoost", "xgboost.collective", **content)
    for _ in range(2):
        module.init()
        module.finalize()
    assert ports == [21001, 22002]
