"""Benchmarks that need a cluster: what they post, and how they account, against a store and against stand-ins."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import cluster_lost_node, cluster_recovery, cluster_spares, create, cuda_recovery, idle, jobset, kwok
from benchmarks.create import Times
from benchmarks.stepwatch import Interruption
from e2e.installation import Installation
from e2e.kube import JOB, Kube, Object
from e2e.machine import Own, Site
from e2e.world import World
from tests.runtime.api_server import ApiServer
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.cluster.port import CONFIG_MAP, POD


class NoKube:
    """Stands for a cluster: keeps what is created or applied, and says what it was told to say."""

    def __init__(self, *_: Any, says: str = "") -> None:
        self.created: list[Object] = []
        self.commands: list[tuple[str, ...]] = []
        self.says = says

    def create(self, obj: Object) -> Object:
        self.created.append(obj)
        return {**obj, "metadata": {**obj["metadata"], "uid": f"uid-{len(self.created)}"}}

    def apply(self, *objects: Object) -> None:
        self.created += objects

    def delete(self, *_: Any) -> None:
        pass

    def kubectl(self, *arguments: str) -> str:
        self.commands.append(arguments)
        return self.says


def as_kube(stand_in: NoKube) -> Kube:
    return cast(Kube, stand_in)


@contextlib.contextmanager
def nothing(*_: Any) -> Iterator[None]:
    yield


class NoWatch:
    """Stands for a watch of pods, which sees them at once."""

    def __init__(self, *_: Any) -> None:
        pass

    def seen(self) -> float:
        return 1.0

    def run(self) -> float:
        return 2.0

    def close(self) -> None:
        pass


def test_a_bare_client_posts_the_operators_pods_and_they_are_seen_to_come_and_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> list[Object]:
        server = ApiServer()
        await server.start()
        try:
            kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
            monkeypatch.setattr(create.places, "KUBECONFIG", kubeconfig)
            watching = asyncio.create_task(kwok.watch(str(kubeconfig), create.SPACE, 3))
            while ("GET", f"/api/v1/namespaces/{create.SPACE}/pods") not in server.asked:
                await asyncio.sleep(0.001)
            meta = {"name": "bare-0", "namespace": create.SPACE}
            owner = server.store.create(CONFIG_MAP, {"kind": CONFIG_MAP, "apiVersion": "v1", "metadata": meta})
            await create._post([create._body(owner, "job-0", 3, slot) for slot in range(3)])
            pods = server.store.list(POD, create.SPACE).items
            for pod in pods:
                server.store.update_status(POD, {**pod, "status": {"phase": "Running"}})
            await watching
            return pods
        finally:
            await server.stop()

    pods = asyncio.run(scenario())
    assert [pod["metadata"]["labels"]["trainmaster.dev/slot"] for pod in pods] == ["0", "1", "2"]
    for pod in pods:
        assert create.STRANGER in pod["metadata"]["labels"]
        assert "trainmaster.dev/job" not in pod["metadata"]["labels"], "the operator must leave it alone"
        assert pod["metadata"]["ownerReferences"][0]["name"] == "bare-0"
    told = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert told == ["watching", "seen", "run"]


def test_creation_is_judged_by_the_ratio_of_turns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    systems = {"trainmaster": lambda *_: Times(2.0, 3.0), "a bare client": lambda *_: Times(1.0, 3.0)}
    monkeypatch.setattr(create, "Kube", NoKube)
    monkeypatch.setattr(create, "SYSTEMS", systems)
    for name, stand_in in {"install": nothing, "fake_nodes": nothing, "space": nothing, "empty": nothing}.items():
        monkeypatch.setattr(kwok, name, stand_in)
    monkeypatch.setattr(sys, "argv", ["create", "--pods", "1", "10", "--repetitions", "2", "--no-write"])
    assert create.main() == 1, "twice the bare client's time is more than the goal"
    assert "10 pods created: 2.00 > 1.25" in capsys.readouterr().out


def test_a_job_is_timed_from_its_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kwok, "Watch", NoWatch)
    monkeypatch.setattr(create.time, "monotonic", lambda: 0.25)
    kube = NoKube()
    assert create.ours(as_kube(kube), 4, 7) == Times(0.75, 1.75)
    assert DistributedTrainingJob.model_validate(kube.created[0]).spec.workers.replicas == 4


def test_what_a_replica_used_is_read_from_its_metrics() -> None:
    kube = NoKube(says="# x\nprocess_cpu_seconds_total 12.5\nprocess_resident_memory_bytes 1.048576e+08\n")
    assert kwok.usage(as_kube(kube), "one") == kwok.Usage(12.5, 100.0)


def test_what_idle_jobs_cost_is_told_by_replica(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter(range(1000))
    replicas = [{"metadata": {"name": "one"}}, {"metadata": {"name": "two"}}]
    installation = SimpleNamespace(leader=lambda: "one", replicas=lambda: replicas)
    monkeypatch.setattr(idle, "Kube", NoKube)
    monkeypatch.setattr(idle, "SETTLED_S", 0.0)
    stand_ins: dict[str, Callable[..., Any]] = {
        "install": lambda _: installation,
        "usage": lambda *_: kwok.Usage(float(next(looks)), 50.0),
        "Watch": NoWatch,
        **dict.fromkeys(("fake_nodes", "space", "empty"), nothing),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(kwok, name, stand_in)
    monkeypatch.setattr(
        sys, "argv", ["idle", "--jobs", "2", "--pods", "3", "--seconds", "0", "--large", "4", "--no-write"]
    )
    assert idle.main() == 0
    told = capsys.readouterr().out
    assert re.search(r"2 idle jobs of 3 pods for 0 s, CPU +leader +2\.00 s", told), told
    assert re.search(r"4 pods of a job turn Ready, memory +standby +50\.00 MiB", told), told


class ToyWorld(World):
    """A namespace that isn't there: it keeps the jobs, and all that a test waits for has come."""

    def __init__(self, folder: Path) -> None:
        self.stand_in = NoKube()
        site = cast(Site, SimpleNamespace(shared=folder))
        super().__init__(as_kube(self.stand_in), cast(Installation, SimpleNamespace()), "space", site)
        self.folder.mkdir(parents=True)

    @property
    def jobs(self) -> list[DistributedTrainingJob]:
        return [DistributedTrainingJob.model_validate(job) for job in self.stand_in.created if job["kind"] == JOB]

    def wait(self, until: Any, what: str, name: str = "job", limit_s: float = 0.0) -> Any:
        clocks = [{"clock": {"detect": 0.1}, "totalSeconds": 0.5}] * 2
        return until({"phase": "Running", "workers": {"spares": 0}, "recoveries": clocks}) or True

    def wait_step(self, step: int, name: str = "job", limit_s: float = 0.0) -> Object:
        return {}

    def succeeded(self, name: str = "job", limit_s: float = 0.0) -> Object:
        return {"recoveries": [{"clock": {"detect": 0.1}, "totalSeconds": 0.5}]}


def test_recoveries_on_a_cluster_are_read_from_the_ranks_stamps(tmp_path: Path) -> None:
    world = ToyWorld(tmp_path)
    (world.folder / "stamps-0").write_text("1000000000 0 first 1 0\n3000000000 1 first 9 70\n")
    (world.folder / "stamps-1").write_text("1000000000 0 first 1\n2000000000 0 death 9\n3500000000 1 first 9\n")
    times, clocks = cluster_recovery.killed_ranks(world, 2, 1)
    assert times == [1.5]
    assert clocks == [{"detect": 0.1, "total": 0.5}]
    assert (world.folder / "script.py").read_text() == cluster_recovery.SCRIPT.read_text()
    assert world.jobs[0].spec.workers.replicas == 2
    assert cluster_recovery.first_after(world.folder, 2, 2_000_000_000) == 3_500_000_000


def test_a_node_that_no_job_comes_back_from_is_healed_and_its_job_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    machine = SimpleNamespace(
        lose=lambda node: done.append(f"lose {node}"), heal=lambda node: done.append(f"heal {node}")
    )

    class Stuck(ToyWorld):
        def __init__(self, *_: Any) -> None:
            super().__init__(tmp_path)

        def open(self) -> None:
            done.append("open")

        def close(self) -> None:
            done.append("close")

        def node_of(self, pod: str) -> str:
            return "node2"

        def wait(self, until: Any, what: str, name: str = "job", limit_s: float = 0.0) -> Any:
            if what == "recovered":
                raise AssertionError("it does not recover")

    monkeypatch.setattr(cluster_recovery, "World", Stuck)
    with (
        pytest.raises(AssertionError, match="it does not recover"),
        cluster_recovery.opened(as_kube(NoKube()), cast(Installation, None), "space") as world,
    ):
        cluster_recovery.disturbed(world, 2, partial(cluster_recovery.lose_node, cast(Own, machine)))
    assert done == ["open", "lose node2", "heal node2", "close"]


class LosingKube(NoKube):
    """A cluster that loses a node: each look at it finds it one stage further."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = False
        self.stage = 0
        self.node: Object = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}

    def get(self, kind: str, name: str, namespace: str = "") -> Object:
        if kind == "Node" and self.lost:
            self.node["status"]["conditions"][0]["status"] = "Unknown"
        return self.node if kind == "Node" else {"metadata": {"uid": "old"}}

    def find(self, kind: str, name: str, namespace: str = "") -> Object | None:
        self.stage += 1
        return {} if self.stage == 1 else None

    def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Object]:
        if not self.lost:
            return []
        self.stage += 1
        spec = {"nodeName": "node3"} if self.stage > 3 else {}
        phase = "Running" if self.stage > 5 else "Pending"
        return [{"metadata": {"name": "job-worker-1-1", "uid": "new"}, "spec": spec, "status": {"phase": phase}}]


class LosingMachine:
    steady = "node1"

    def __init__(self, kube: LosingKube, stamps: Path) -> None:
        self.kube, self.stamps = kube, stamps
        self.healed: list[str] = []

    def lose(self, node: str) -> None:
        self.kube.lost = True
        for rank in (0, 1):
            (self.stamps / f"stamps-{rank}").write_text(f"{10**18} 1 first 9\n")

    def heal(self, node: str) -> None:
        self.healed.append(node)


class LeadingInstallation:
    """Two replicas on two nodes, of which the first one leads until it is deleted."""

    def __init__(self) -> None:
        self.kube = self
        self.nodes = {"operator-1": "node1", "operator-2": "node2"}
        self.said: list[str] = []

    def leader(self, limit_s: float = 60.0, other_than: str = "") -> str:
        return next(iter(self.nodes))

    def node_of(self, replica: str) -> str:
        return self.nodes[replica]

    def replicas(self) -> list[Object]:
        return [{"metadata": {"name": name}} for name in self.nodes]

    def delete(self, kind: str, name: str, namespace: str = "") -> None:
        self.said.append(f"delete {name}")
        del self.nodes[name]

    def kubectl(self, *words: str) -> None:
        self.said.append(" ".join(words))

    def wait_old_ended(self) -> None:
        pass

    def wait_ready(self) -> None:
        pass


@pytest.mark.parametrize(("node", "there", "left"), [("node1", True, 2), ("node1", False, 1), ("node2", False, 2)])
def test_the_leader_is_moved_only_where_it_is_on_the_wrong_node(node: str, there: bool, left: int) -> None:
    installation = LeadingInstallation()
    cluster_lost_node.place_leader(cast(Installation, installation), node, there)
    assert len(installation.nodes) == left
    assert (installation.node_of(installation.leader()) == node) is there


@pytest.mark.parametrize(("node", "deleted"), [("node1", []), ("node2", ["delete operator-2"])])
def test_no_standby_stays_on_the_node_that_will_be_lost(node: str, deleted: list[str]) -> None:
    installation = LeadingInstallation()
    cluster_lost_node.move_standbys(cast(Installation, installation), node)
    assert installation.said == [f"cordon {node}", *deleted, f"uncordon {node}"]


def test_a_benchmark_says_that_no_operator_is_where_one_has_to_lead() -> None:
    with pytest.raises(SystemExit, match="no operator can lead on node3"):
        cluster_lost_node.place_leader(cast(Installation, LeadingInstallation()), "node3", True)


def test_the_phases_of_a_lost_node_follow_one_another_and_the_node_is_healed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_lost_node, "LOOK_S", 0.0)
    world = ToyWorld(tmp_path)
    kube = LosingKube()
    world.kube, world.stand_in = as_kube(kube), kube
    monkeypatch.setattr(world, "node_of", lambda pod: "node2" if pod == "job-worker-1-0" else "node1")
    world.installation = cast(Installation, LeadingInstallation())
    machine = LosingMachine(kube, world.folder)
    seconds = cluster_lost_node.sample(world, cast(Own, machine), 2)
    assert tuple(seconds) == cluster_lost_node.PHASES
    assert all(value >= 0 for value in seconds.values())
    assert machine.healed == ["node2"]
    assert kube.stage > 5, "the successor was waited for until it ran"


@pytest.mark.parametrize("plan", cluster_spares.PLANS[:2], ids=lambda plan: plan.name)
def test_a_job_that_loses_a_pod_is_legal_and_its_interruption_is_told(
    plan: cluster_spares.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Interruption(0.5, 1.0)

    @contextlib.contextmanager
    def steps(_: Path) -> Iterator[Any]:
        yield SimpleNamespace(interruption=lambda since: seen)

    monkeypatch.setattr(cluster_spares, "Steps", steps)
    monkeypatch.setattr(cluster_spares, "BEFORE_S", 0.0)
    monkeypatch.setattr(cluster_spares, "AFTER_S", 0.0)
    world = ToyWorld(tmp_path)
    found, clock = cluster_spares.disturbed(world, plan)
    assert found == seen
    assert clock == {"detect": 0.1, "total": 0.5}
    assert (world.jobs[0].spec.workers.replicas, world.jobs[0].spec.workers.spares) == (plan.replicas, plan.spares)
    cases = cluster_spares.interrupted(plan.name, [(found, clock)])
    assert [case.case for case in cases[:2]] == [plan.name, f"{plan.name}, until it trains again"]


def test_the_jobs_that_lose_a_node_keep_their_pods_apart() -> None:
    for plan in cluster_spares.PLANS:
        assert bool(plan.template) is ("node" in plan.name)
    (term,) = cluster_spares.apart("job")["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"] == {"trainmaster.dev/job": "job"}


def test_under_jobset_ranks_find_rank_0_and_know_their_attempt(tmp_path: Path) -> None:
    world = ToyWorld(tmp_path)
    (world.folder / "stamps-0").write_text("3000000000 1 first 9 0\n")
    (world.folder / "stamps-1").write_text("2000000000 0 death 9 0\n3500000000 1 first 9 0\n")
    assert jobset.under_jobset(world, 2, 1) == [1.5]
    (made,) = world.stand_in.created
    job = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    container = job["template"]["spec"]["containers"][0]
    env = {variable["name"]: variable for variable in container["env"]}
    assert (job["parallelism"], job["completions"], job["backoffLimit"]) == (2, 2, 0)
    assert env["MASTER_ADDR"]["value"] == "bench-worker-0-0.bench"
    assert jobset.RESTARTS in env["TORCHELASTIC_RESTART_COUNT"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert "exec" not in container["command"][-1], "a process with pid 1 can't kill itself"
    assert made["spec"]["failurePolicy"]["maxRestarts"] == 1


def test_jobset_without_its_manifests_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        jobset.read(["--manifests", str(tmp_path / "none.yaml")])
    assert refused.value.code == 2
    assert "there is no such file" in capsys.readouterr().err


def test_the_release_of_jobset_is_that_of_its_controller() -> None:
    pod = {"spec": {"containers": [{"image": "jobset:v1"}]}}
    says = json.dumps({"items": [{"spec": {"template": pod}}]})
    assert jobset.image_of(as_kube(NoKube(says=says))) == "jobset:v1"


def test_without_a_device_there_is_nothing_to_measure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda_recovery, "Devices", list)
    monkeypatch.setattr(sys, "argv", ["cuda_recovery"])
    assert cuda_recovery.main() == 2
    assert "no CUDA device is at hand" in capsys.readouterr().err


def test_a_milestone_is_reached_when_the_last_rank_is_there() -> None:
    def channel(**marks: int) -> Any:
        messages = iter([({"kind": "hello"}, []), ({"kind": "marks", "marks": marks}, [])])
        return SimpleNamespace(receive=lambda: next(messages))

    assert cuda_recovery.marks_of([channel(fork=1, nccl=9), channel(fork=3, nccl=7)]) == {"fork": 3, "nccl": 9}
