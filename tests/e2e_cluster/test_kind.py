"""A cluster by kind: what it is told, and what is done to its nodes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from e2e.cluster import binaries
from e2e.cluster.daemons import Daemon
from e2e.cluster.shell import ClusterError
from e2e.kind import config, docker, engine, node_network, nodes
from e2e.kind.docker import Docker
from e2e.kind.places import AUDIT, CONTROL_PLANE, DOCKER_IP, NODES, SHARED, WORKERS
from e2e.machine import site


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(config, "STATE", tmp_path)
    monkeypatch.setattr(docker, "_CHOICE", tmp_path / "choice.json")
    return tmp_path


class Recorder(Docker):
    """A docker whose commands are only written down; `answers`: what the next ones print."""

    def __init__(self, *answers: str, works: bool = False) -> None:
        super().__init__(dict(os.environ), ours=True)
        self.commands: list[str] = []
        self._answers, self._works = list(answers), works

    def run(self, *words: str | Path, stdin: str = "") -> str:
        self.commands.append(" ".join(map(str, words)))
        return self._answers.pop(0) if self._answers else ""

    def works(self, *words: str | Path) -> bool:
        return self._works


def written(image: str, **options: bool) -> dict[str, object]:
    content: dict[str, object] = json.loads(config.write_cluster(image, **options).read_text())
    return content


def test_every_node_shares_a_folder_and_the_control_plane_writes_its_audit_log_outside(state: Path) -> None:
    nodes = written("some/image", own_image=False, own_docker=False)["nodes"]
    assert isinstance(nodes, list)
    assert [node["role"] for node in nodes] == ["control-plane", "worker", "worker"]
    mounts = [[mount["hostPath"] for mount in node["extraMounts"]] for node in nodes]
    assert mounts == [[str(SHARED), str(AUDIT)], [str(SHARED)], [str(SHARED)]]
    assert {node["image"] for node in nodes} == {"some/image"}


def test_a_plain_cluster_has_kinds_own_network_and_address(state: Path) -> None:
    assert written("kindest/node", own_image=False, own_docker=False)["networking"] == {}


def test_a_docker_of_our_own_is_reached_at_its_own_address(state: Path) -> None:
    networking = written("made/here", own_image=True, own_docker=True)["networking"]
    assert networking == {"disableDefaultCNI": True, "apiServerAddress": DOCKER_IP, "apiServerPort": 6443}


def test_both_modules_build_the_same_kubernetes() -> None:
    versions = {binaries.version(module, "k8s.io/kubernetes") for module in ("kubernetes", "kind")}
    assert len(versions) == 1


@pytest.mark.parametrize("act", [nodes.lose, nodes.partition])
def test_the_control_plane_is_never_lost(act: object) -> None:
    assert callable(act)
    for name in (CONTROL_PLANE, "node1"):
        recorder = Recorder()
        with pytest.raises(ClusterError, match=name):
            act(recorder, name)
        assert recorder.commands == []


def test_a_cut_link_lets_nothing_in_and_nothing_out() -> None:
    recorder = Recorder()
    nodes.partition(recorder, WORKERS[0])
    rules = [command.partition("mangle ")[2] for command in recorder.commands]
    assert rules == [
        "-I PREROUTING --in-interface eth0 -j DROP",
        "-I POSTROUTING --out-interface eth0 -j DROP",
    ]


def test_a_pod_without_processes_is_told() -> None:
    with pytest.raises(ClusterError, match="no process of pod 1-2"):
        nodes.kill_pod(Recorder("\n"), WORKERS[0], "1-2")


def test_every_process_of_the_pod_and_no_other_is_killed(tmp_path: Path) -> None:
    """The script that runs on a node, over a /proc of its own."""
    uid = "0a1b-2c3d"
    victim = subprocess.Popen(["sleep", "600"])
    others = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    try:
        for process, cgroup, comm in (
            (victim, "/kubelet.slice/kubelet-kubepods-pod0a1b_2c3d.slice/x", "python3"),
            (others[0], "/kubelet.slice/kubelet-kubepods-pod0a1b_2c3d.slice/y", "pause"),
            (others[1], "/kubelet.slice/kubelet-kubepods-podffff_ffff.slice/z", "python3"),
        ):
            folder = tmp_path / str(process.pid)
            folder.mkdir()
            (folder / "cgroup").write_text(f"3:cpu:{cgroup}\n")
            (folder / "comm").write_text(f"{comm}\n")
        script = nodes._KILL.replace("/proc/", f"{tmp_path}/")
        said = subprocess.run(
            ["sh", "-c", script, uid.replace("-", "[-_]")], capture_output=True, text=True, check=True
        ).stdout
        assert said.split() == [str(victim.pid)]
        assert victim.wait() == -9
        assert [process.poll() for process in others] == [None, None]
    finally:
        for process in (victim, *others):
            process.kill()
            process.wait()


def test_each_node_that_runs_gets_the_way_to_the_others_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [
        {"metadata": {"name": name}, "spec": {"podCIDR": f"10.244.{number}.0/24"}} for number, name in enumerate(NODES)
    ]
    monkeypatch.setattr(node_network, "kubectl", lambda *_: json.dumps({"items": items}))
    recorder = Recorder("172.18.0.2\n", "172.18.0.7\n", "\n")  # the last one is lost
    node_network.lay(recorder)
    routes = [command.partition("exec --interactive ")[2] for command in recorder.commands if " route " in command]
    assert routes == [
        f"{CONTROL_PLANE} ip route replace 10.244.1.0/24 via 172.18.0.7",
        f"{WORKERS[0]} ip route replace 10.244.0.0/24 via 172.18.0.2",
    ]


def test_the_runtime_asks_for_every_capability_but_one(tmp_path: Path) -> None:
    runc = tmp_path / "runc"
    runc.write_text('#!/bin/sh\nfor last in "$@"; do :; done; echo "$last"\n')
    runc.chmod(0o755)
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    wanted = ["CAP_SYS_RESOURCE", "CAP_CHOWN", "CAP_SYS_RESOURCE", "CAP_KILL", "CAP_SYS_RESOURCE"]
    compact = json.dumps({"bounding": wanted}, separators=(",", ":"))
    for path in (bundle / "config.json", tmp_path / "process.json"):
        path.write_text(compact)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for words in (["create", "--bundle", bundle, "name"], ["exec", "--process", tmp_path / "process.json", "name"]):
        said = subprocess.run([engine._RUNC, *words], env=environment, capture_output=True, text=True, check=True)
        assert said.stdout == "name\n"
    for path in (bundle / "config.json", tmp_path / "process.json"):
        assert json.loads(path.read_text()) == {"bounding": ["CAP_CHOWN", "CAP_KILL"]}


def test_a_name_of_the_outside_is_unknown() -> None:
    question = b"\x08registry\x07invalid\0" + b"\0\1\0\1"
    query = b"\x12\x34" + b"\x01\0" + b"\0\1\0\0\0\0\0\1" + question + b"\0\0\x29\x10\0" + bytes(6)  # EDNS behind it
    answer = engine.no_such_name(query)
    assert answer == b"\x12\x34" + b"\x81\x83" + b"\0\1\0\0\0\0\0\0" + question


def test_a_docker_that_answers_is_taken_as_it_is(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho fine\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    chosen = docker.start()
    assert not chosen.ours
    assert chosen.run("info") == "fine\n"
    assert docker.found() is not None


def test_a_docker_of_our_own_that_ends_at_once_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with what `ip` says of a process that isn't there."""
    ran: list[object] = []
    daemon = Daemon("docker", tmp_path)
    daemon.log.parent.mkdir()
    daemon.log.write_text("No module named e2e\n")
    monkeypatch.setattr(daemon, "start", lambda *_, **__: None)
    monkeypatch.setattr(engine, "_DAEMON", daemon)
    monkeypatch.setattr(engine, "STATE", tmp_path)
    monkeypatch.setattr(engine, "run", lambda *words: ran.append(words))
    for name in ("stop", "_unpack", "_make_folder", "allow_many_files"):
        monkeypatch.setattr(engine, name, lambda *_: None)
    with pytest.raises(ClusterError, match=r"^docker ended: No module named e2e"):
        engine.start()
    assert ran == []


def test_elsewhere_whoever_runs_the_tests_names_the_shared_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("E2E_SHARED", raising=False)
    assert site("current").shared is None
    monkeypatch.setenv("E2E_SHARED", str(tmp_path))
    found = site("current")
    assert (found.kubeconfig, found.shared, found.machine) == (tmp_path / "config", tmp_path, None)
