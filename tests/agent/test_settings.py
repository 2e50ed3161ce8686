"""What an agent reads from its pod's environment, and gives to its ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys

import pytest

from trainmaster.agent.shell.launching.agent_settings import Settings
from trainmaster.agent.shell.launching.rank_environment import rank_environment
from trainmaster.contract.wire import Assignment, StoreAddress, environment

POD = {
    environment.JOB_UID: "0b5c",
    environment.NAMESPACE: "team",
    environment.JOB: "demo",
    environment.ROLE: "worker",
    environment.SLOT: "1",
    environment.INCARNATION: "0",
    environment.POD_UID: "77aa",
    environment.OPERATOR_URL: "https://operator:8443",
}
CORES = 8


@pytest.fixture(autouse=True)
def _cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(CORES)))


def threads(env: dict[str, str], ranks: int = 1, world_size: int = 4) -> str:
    settings = Settings.read({**POD, **env})
    assignment = Assignment(
        round=1,
        store=StoreAddress("10.0.0.7", 29500),
        first_rank=ranks,
        ranks=ranks,
        world_size=world_size,
        group_rank=1,
        group_world_size=world_size // ranks,
        restart_count=0,
    )
    variables = rank_environment(settings, assignment, 0)
    assert environment.CPU_MILLIS not in variables
    told = json.loads(variables[environment.NUMBERS])
    assert told["WORLD_SIZE"] == str(world_size)
    assert told == {name: variables[name] for name in told}, "what launchers below the rank give their processes"
    return variables["OMP_NUM_THREADS"]


def test_an_agent_refuses_a_pod_in_which_its_framework_cannot_work() -> None:
    pod = {**POD, environment.FRAMEWORK: "Horovod", environment.COMMAND: '["./train"]'}
    assert Settings.read({**pod, environment.POD_IP: "10.0.0.7"}).pod_ip == "10.0.0.7"
    with pytest.raises(ValueError, match="over IPv4 alone, and the address of this pod is fd00::7"):
        Settings.read({**pod, environment.POD_IP: "fd00::7"})


@pytest.mark.parametrize(
    ("millis", "ranks", "expected"),
    [("250", 1, "1"), ("4000", 1, "4"), ("2500", 1, "3"), ("4000", 2, "2"), ("6000", 4, "1"), ("64000", 1, "8")],
)
def test_ranks_have_as_many_threads_as_their_pod_has_cores(millis: str, ranks: int, expected: str) -> None:
    assert threads({environment.CPU_MILLIS: millis}, ranks) == expected


def test_ranks_of_a_pod_without_amounts_share_the_node_and_those_of_one_machine_all_of_it() -> None:
    assert threads({}, ranks=2) == "4"
    assert threads({environment.ONE_MACHINE: "1"}, ranks=1, world_size=4) == "2"


def test_what_the_user_says_counts() -> None:
    assert threads({environment.CPU_MILLIS: "4000", "OMP_NUM_THREADS": "7"}) == "7"


def test_an_amount_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=f"{environment.CPU_MILLIS}='much': a whole number is expected"):
        threads({environment.CPU_MILLIS: "much"})


def test_a_pinned_rank_has_no_more_threads_than_cpus() -> None:
    settings = Settings.read({**POD, environment.PINNING: "1"})
    assignment = Assignment(
        round=1,
        store=StoreAddress("10.0.0.7", 29500),
        first_rank=0,
        ranks=2,
        world_size=2,
        group_rank=0,
        group_world_size=1,
        restart_count=0,
    )
    variables = rank_environment(settings, assignment, 1, cpus=[2, 6])
    assert variables["OMP_NUM_THREADS"] == "2"
    assert variables[environment.CPUS] == "2,6"
    assert environment.PINNING not in variables
    assert environment.CPUS not in rank_environment(settings, assignment, 1)


SCRIPT = {**POD, environment.FRAMEWORK: "PyTorch"}


def of(command: list[str], **env: str) -> Settings:
    return Settings.read({**SCRIPT, environment.COMMAND: json.dumps(command), **env})


def round_of(restart_count: int, world_size: int = 2) -> Assignment:
    store = StoreAddress("10.0.0.7", 29500)
    return Assignment(1, world_size, 0, world_size, 0, 1, store, restart_count)


def test_every_round_but_a_jobs_first_one_runs_the_restart_command() -> None:
    again = json.dumps(["env", "A=again", "python", "t.py", "--resume"])
    settings = of(["env", "A=first", "python", "t.py"], **{environment.RESTART_COMMAND: again})
    first, second = settings.of_round(round_of(0)), settings.of_round(round_of(1))
    assert first.entry == {"kind": "script", "path": "t.py", "args": []}
    assert second.entry == {"kind": "script", "path": "t.py", "args": ["--resume"]}
    assert second.of_round(round_of(2)).entry == second.entry
    assert rank_environment(first, round_of(0), 0)["A"] == "first"
    assert rank_environment(second, round_of(1), 0)["A"] == "again"
    assert first.key() != second.key(), "zygotes of one environment have no forks for another"


def test_without_a_restart_command_every_round_runs_the_command() -> None:
    assert of(["python", "t.py"]).of_round(round_of(3)).entry == {"kind": "script", "path": "t.py", "args": []}


def test_variables_in_a_command_are_set_for_its_ranks() -> None:
    settings = of(["env", "-u", "B", "A=1", "./run.sh"], A="0", B="0")
    variables = rank_environment(settings, round_of(0), 0)
    assert (settings.command.argv, variables["A"], "B" in variables) == (["./run.sh"], "1", False)


def test_a_launcher_that_was_told_another_number_of_processes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--nproc-per-node=4, but workers.ranksPerPod is 2"):
        of(["torchrun", "--nproc-per-node=4", "t.py"], **{environment.RANKS_PER_POD: "2"})
    settings = of(["torchrun", "--nproc-per-node=2", "t.py"], **{environment.RANKS_PER_POD: "2"})
    assert settings.wrong_size(round_of(0, world_size=4)) == ""


def test_a_bare_python_is_the_one_that_the_person_has() -> None:
    own, other = of(["python", "t.py"]), of(["python", "t.py"], **{environment.PYTHON: "/opt/venv/bin/python"})
    assert own.entry is not None
    assert (other.entry, other.command.argv) == (None, ["python", "t.py"]), "executed: PATH leads to that one"
    assert of(["torchrun", "t.py"], **{environment.PYTHON: sys.executable}).entry == own.entry
    assert of(["/opt/other/bin/python", "t.py"]).entry is None
    assert of([sys.executable, "t.py"]).entry == own.entry


LOCAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


def numbers(env: dict[str, str], pods: int, ranks: int) -> list[tuple[int, ...]]:
    """LOCAL of each rank of a world, in the order of ranks."""
    settings = Settings.read({**POD, **env})
    found = []
    for pod in range(pods):
        assignment = Assignment(
            round=1,
            store=StoreAddress("10.0.0.7", 29500),
            first_rank=pod * ranks,
            ranks=ranks,
            world_size=pods * ranks,
            group_rank=pod,
            group_world_size=pods,
            restart_count=0,
        )
        for pod_rank in range(ranks):
            variables = rank_environment(settings, assignment, pod_rank)
            assert variables["RANK"] == str(len(found))
            assert variables[environment.POD_RANK] == str(pod_rank), "its pod's memory is shared with these alone"
            assert variables[environment.RANKS_PER_POD] == str(ranks)
            found.append(tuple(int(variables[name]) for name in LOCAL))
    return found


@pytest.mark.parametrize(("pods", "ranks"), [(4, 1), (2, 2), (1, 4)])
def test_on_one_machine_local_ranks_are_numbered_over_all_pods_as_by_torchrun(pods: int, ranks: int) -> None:
    assert numbers({environment.ONE_MACHINE: "1"}, pods, ranks) == [(rank, 4, 0, 1) for rank in range(4)]


@pytest.mark.parametrize("env", [{}, {environment.ONE_MACHINE: "1", environment.PODS_AS_NODES: "1"}])
def test_a_pod_that_is_a_node_numbers_its_own_ranks(env: dict[str, str]) -> None:
    assert numbers(env, pods=2, ranks=2) == [(0, 2, 0, 2), (1, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2)]


def test_pods_that_are_nodes_of_one_machine_still_share_its_cores() -> None:
    assert threads({environment.ONE_MACHINE: "1", environment.PODS_AS_NODES: "1"}, ranks=1, world_size=4) == "2"


def test_what_tells_an_agent_of_its_machine_is_not_the_ranks_business() -> None:
    settings = Settings.read({**POD, environment.ONE_MACHINE: "1", environment.PODS_AS_NODES: "1"})
    assert not {environment.ONE_MACHINE, environment.PODS_AS_NODES} & set(settings.environ)


def of_framework(framework: str, **env: str) -> Settings:
    return Settings.read({**of_pod(framework), **env})


def of_pod(framework: str) -> dict[str, str]:
    return {**POD, environment.FRAMEWORK: framework, environment.COMMAND: json.dumps(["python", "t.py"])}


def test_an_image_without_the_framework_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    words = rf"framework JAX: jax is not installed for {sys.executable}: use an image that has it"
    with pytest.raises(ValueError, match=words):
        of_framework("JAX")
    with pytest.raises(ValueError, match="neither transformers nor accelerate is installed"):
        of_framework("HuggingFace")


def test_another_interpreters_packages_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    command = json.dumps(["/opt/venv/bin/python", "t.py"])
    assert of_framework("JAX", **{environment.COMMAND: command}).entry is None


def test_a_variable_by_which_ranks_find_each_other_is_refused_where_the_image_sets_it() -> None:
    with pytest.raises(ValueError, match="TF_CONFIG must not be set for framework TensorFlow"):
        of_framework("TensorFlow", TF_CONFIG="{}")


def test_an_agent_that_is_older_than_the_operator_says_which_frameworks_it_knows() -> None:
    with pytest.raises(ValueError, match="framework Chainer: this agent knows Trainmaster, PyTorch"):
        of_framework("Chainer")


def test_what_the_user_sets_wins_over_a_default_of_the_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr("trainmaster.agent.shell.launching.rank_environment.has_accelerator", lambda env: False)
    assert rank_environment(of_framework("DeepSpeed"), round_of(0), 0)["DS_ACCELERATOR"] == "cpu"
    given = of_framework("DeepSpeed", DS_ACCELERATOR="xpu")
    assert rank_environment(given, round_of(0), 0)["DS_ACCELERATOR"] == "xpu"


def test_process_groups_of_one_machine_listen_on_loopback_unless_the_job_names_an_interface() -> None:
    here = {**POD, environment.ONE_MACHINE: "1"}
    variables = rank_environment(Settings.read(here), round_of(0), 0)
    interface = variables["GLOO_SOCKET_IFNAME"]
    assert variables["NCCL_SOCKET_IFNAME"] == f"={interface}"
    assert interface in {name for _, name in socket.if_nameindex()}
    named = rank_environment(Settings.read({**here, "GLOO_SOCKET_IFNAME": "eth7"}), round_of(0), 0)
    assert named["GLOO_SOCKET_IFNAME"] == "eth7"
    on_a_cluster = rank_environment(Settings.read(POD), round_of(0), 0)
    assert not [name for name in on_a_cluster if name.endswith("_SOCKET_IFNAME")]
