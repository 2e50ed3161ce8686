"""Random faults by seed: every job gets through, and every run of a seed is the same run."""

import asyncio
import gc
import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import trainmaster
import trainmaster_operator
from simulation.faults.random_faults import KINDS, Fault, inject
from simulation.schedule_runs.schedule import Schedule
from simulation.schedule_runs.simulated_run import Outcome, run_schedule, run_seed, simulate
from simulation.virtual.cluster_faults import Rates
from simulation.virtual.virtual_storage import Checkpoint, Fenced, Storage
from simulation.virtual.virtual_world import Workload
from trainmaster.contract.wire import Cause, ExitCode
from trainmaster_operator.cluster.port import JOB
from trainmaster_operator.control import fleet
from trainmaster_operator.planning.placement import replaced_pods
from trainmaster_operator.runtime.job_pass.pod_writes import PodWrites
from trainmaster_operator.runtime.operator import default_policies

FOUND = Path(__file__).parent / "found"
BATCHES = 10
SEEDS_PER_BATCH = 15


def told(outcome: Outcome) -> str:
    return "\n".join([*map(str, outcome.faults), *outcome.log, *outcome.violations])


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_job_gets_through_its_faults(batch):
    for seed in range(batch * SEEDS_PER_BATCH, (batch + 1) * SEEDS_PER_BATCH):
        outcome = run_seed(seed)
        assert not outcome.violations, f"seed {seed}\n{told(outcome)}"


@pytest.mark.parametrize("file", sorted(FOUND.glob("*.json")), ids=lambda file: file.stem)
def test_schedules_that_once_found_a_bug_stay_good(file):
    outcome = run_schedule(Schedule.from_json(file.read_text()))
    assert not outcome.violations, told(outcome)


def test_a_seed_is_the_same_run_each_time_and_in_each_process():
    program = (
        "import hashlib; from simulation.schedule_runs.simulated_run import run_seed\n"
        "print(hashlib.sha256('\\n'.join(line for s in (3, 8) for line in run_seed(s).log).encode()).hexdigest())"
    )
    here = hashlib.sha256("\n".join(line for s in (3, 8) for line in run_seed(s).log).encode()).hexdigest()
    roots = [str(Path(package.__file__).parents[1]) for package in (trainmaster, trainmaster_operator)]
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(roots), "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == here


def test_a_run_leaves_the_garbage_collector_as_it_was():
    before = gc.get_threshold()
    run_seed(3)
    assert gc.get_threshold() == before


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_job_survives_each_kind_of_fault_at_its_start_middle_and_end(kind):
    for step, seconds in ((0, 2.0), (7, 0.3), (14, 12.0)):
        fault = Fault(kind, step, 0.05, seconds, number=step)
        outcome = simulate(f"{kind} {step}", Workload(steps=15, save_every=4), lambda world, f=fault: inject(world, f))
        assert not outcome.violations, f"{fault}\n{told(outcome)}"


def test_an_operator_whose_writes_all_fail_loses_its_lease():
    leads = []

    async def refuse_all_writes(world):
        await world.until_step(5)
        first = world.operator
        world.set_weather(Rates(conflict=1.0))
        await asyncio.sleep(15.0)
        leads.append(first.leads)
        world.set_weather(Rates())

    outcome = simulate("no writes", Workload(steps=200), refuse_all_writes)
    assert not outcome.violations, told(outcome)
    assert leads == [False]


def test_a_webhook_that_is_down_at_the_start_of_a_job_meets_its_first_pods():
    for seed in range(60):
        schedule = Schedule.of_seed(seed)
        down = [fault for fault in schedule.faults if fault.kind == "dead-webhook" and fault.step == 0]
        if not down:
            continue
        outcome = run_schedule(replace(schedule, faults=tuple(down), may_fail=False))
        assert not outcome.violations, told(outcome)
        created = [at for at, words in outcome.noted if " ADDED " in words]
        assert created[-1] > down[0].delay_s + down[0].seconds, f"seed {seed}\n{told(outcome)}"


@pytest.mark.parametrize(
    ("kinds", "seconds"),
    [(("slow-api", "slow-api"), 5.0), (("refuse-pods", "dead-webhook"), 25.0), (("api-outage", "api-outage"), 1.0)],
)
def test_faults_that_overlap_end_each_by_itself(kinds, seconds):
    longer = {}

    async def overlap(world):
        before = world.latency_s
        await world.until_step(5)
        world.spawn(inject(world, Fault(kinds[0], 0, 0.0, 4.0, number=0)))
        await asyncio.sleep(1.0)
        world.spawn(inject(world, Fault(kinds[1], 0, 0.0, seconds, number=0)))
        await asyncio.sleep(4.0)
        longer["webhook"] = world.store.admission is not None
        longer["outage"] = world.outage_until
        await asyncio.sleep(25.0)
        assert world.latency_s == before
        assert world.store.admission is None

    outcome = simulate("overlap", Workload(steps=300), overlap)
    assert not outcome.violations, told(outcome)
    assert longer["webhook"] == ("dead-webhook" in kinds)
    began = [at for at, words in outcome.noted if "FAULT" in words]
    assert longer["outage"] == (began[0] + 4.0 if "api-outage" in kinds else 0.0)


def test_a_task_of_the_simulator_that_meets_a_conflict_does_not_end_in_silence():
    async def twice(world):
        world.create_job()

    outcome = simulate("twice", Workload(steps=8), twice)
    assert [words.partition(":")[0] for words in outcome.violations] == ["the simulation broke"]


def test_the_simulator_notices_an_operator_that_forgets_to_replace_a_pod():
    policies = default_policies()

    def forgetful(spec, status, observed, now):
        decision = policies.plan(spec, status, observed, now)
        return replace(decision, create=tuple(pod for pod in decision.create if pod.incarnation == 0))

    async def kill_a_pod(world):
        await world.until_step(5)
        world.kubelet.living()[0].die(137)

    outcome = simulate("forgetful", Workload(), kill_a_pod, policies=replace(policies, plan=forgetful), longest_s=60)
    assert any("has not ended" in violation for violation in outcome.violations)


def test_the_simulator_notices_pods_of_a_slot_that_came_back_with_a_number_that_was_used():
    policies = default_policies()

    def forgetful(spec, status, observed, now):
        workers = status.workers.model_copy(update={"nextIncarnation": 0})
        return policies.plan(spec, status.model_copy(update={"workers": workers}), observed, now)

    async def shrink_and_grow(world):
        await world.until_step(5)
        for replicas in (1, 3):
            world.edit_job({"spec": {"workers": {"replicas": replicas}}})
            await asyncio.sleep(10.0)

    plans = [policies.plan, forgetful]
    right, wrong = (
        simulate(
            "shrink", Workload(steps=200, elastic=True), shrink_and_grow, policies=replace(policies, plan=plan)
        ).violations
        for plan in plans
    )
    assert right == []
    assert "slot 1 came back with incarnation 0, which it has had" in wrong


def test_the_simulator_notices_a_restart_that_is_counted_as_another_later():
    policies = default_policies()

    def restless(spec, status, observed, now):
        decision = policies.plan(spec, status, observed, now)
        restarts = decision.status.restarts
        if decision.intent or not restarts.pod:
            return decision
        counted = restarts.model_copy(update={"pod": 0, "full": restarts.pod})
        return replace(decision, status=decision.status.model_copy(update={"restarts": counted}))

    fault = Fault("kill-pod", 5, 0.0, 1.0, number=0)
    outcome = run_schedule(Schedule("restless", Workload(), (fault,)), replace(policies, plan=restless))
    assert "restarts went back from (0, 1, 0, 0, 0) to (0, 0, 1, 0, 0)" in outcome.violations


def test_the_simulator_notices_a_status_that_does_not_name_the_newest_checkpoint(monkeypatch):
    monkeypatch.setattr(fleet, "newest_checkpoint", lambda known, inventory: None)
    outcome = simulate("unheard", Workload(steps=8), lambda world: asyncio.sleep(0))
    assert outcome.violations == [f"the newest checkpoint is {Checkpoint(1, 8)}, but the status names None"]


def test_the_simulator_notices_a_checkpoint_off_the_chain():
    storage = Storage()
    assert storage.open_round(1) is None
    storage.manifests[Checkpoint(1, 5)] = None
    assert storage.open_round(2) == Checkpoint(1, 5)
    storage.manifests[Checkpoint(1, 10)] = None  # a late writer of round 1
    assert storage.newest() == Checkpoint(1, 5)
    assert storage.broken() == []
    with pytest.raises(Fenced):
        storage.open_round(2)
    storage.lineage[3] = Checkpoint(1, 10)
    assert len(storage.broken()) == 1


def test_a_late_writer_of_an_old_round_leaves_an_orphan_that_nobody_resumes_from():
    """A single pod is cut off, its successor takes over, and the old ranks go on training and saving for a while."""

    async def cut_off(world):
        await world.until_step(12)
        for agent in world.kubelet.living():
            agent.cut_off = True
            world.spawn(heal(agent))

    async def heal(agent):
        await asyncio.sleep(25)
        agent.cut_off = False

    workload = Workload(replicas=1, steps=200, save_every=5, agent_lost_s=6.0)
    outcome = simulate("late writer", workload, cut_off)
    assert not outcome.violations, told(outcome)
    assert outcome.status.round == 2
    assert any("is given up: a newer round owns the storage" in line for line in outcome.log)


def test_an_agent_that_is_cut_off_does_not_hear_that_it_is_refused():
    alive = []

    async def delete_unheard(world):
        await world.until_step(5)
        (agent,) = world.kubelet.living()
        agent.cut_off = True
        world.store.delete(JOB, world.namespace, world.name)
        await asyncio.sleep(5.0)
        alive.append(agent.alive)
        agent.cut_off = False

    outcome = simulate("cut off", Workload(replicas=1, steps=100), delete_unheard)
    assert not outcome.violations, told(outcome)
    assert alive == [True]


def test_an_agent_opens_a_store_only_when_a_leader_has_asked_for_it():
    unasked = []

    async def look(world):
        while not world.status().roundStore:
            unasked.extend(agent.pod for agent in world.kubelet.living() if agent.offered and agent.directive is None)
            await asyncio.sleep(0.001)

    outcome = simulate("stores", Workload(steps=8), look)
    assert not outcome.violations, told(outcome)
    assert unasked == []


def test_an_agent_whose_job_is_gone_ends_with_the_exit_code_of_a_fence():
    async def delete(world):
        await world.until_step(5)
        world.store.delete(JOB, world.namespace, world.name)

    outcome = simulate("deleted", Workload(replicas=1), delete)
    assert not outcome.violations, told(outcome)
    (end,) = [words for _, words in outcome.noted if "job-worker-0-0 ends" in words]
    assert end == f"job-worker-0-0 ends with {ExitCode.FENCED} it is stale"


def test_nobody_tells_of_the_end_of_a_pod_whose_node_is_dead_before_the_node_is_back():
    phases = []

    async def lose_power(world):
        world.spawn(inject(world, Fault("lose-node", 5, 0.0, 20.0, number=1)))
        await world.until_step(5)
        living = world.kubelet.living()
        await asyncio.sleep(3.0)
        (dead,) = [agent for agent in living if not agent.alive]
        phases.extend(pod["status"]["phase"] for pod in world.pods() if pod["metadata"]["name"] == dead.pod)

    outcome = simulate("dead node", Workload(), lose_power)
    assert not outcome.violations, told(outcome)
    assert phases == ["Running"]
    assert [(r.cause, r.rung.value) for r in outcome.status.recoveries] == [("NodeLost", "free")]


@pytest.mark.parametrize("seconds", [25.0, 60.0])
def test_a_script_on_a_lost_node_ends_its_ranks_before_those_of_the_next_round_step(seconds):
    schedule = Schedule("a script on a lost node", Workload(replicas=1, steps=400, script=True))
    outcome = run_schedule(replace(schedule, faults=(Fault("lose-node", 20, 0.0, seconds, number=0),)))
    assert not outcome.violations, told(outcome)
    assert outcome.status.round == 2


@pytest.mark.parametrize("earlier", [(), (Fault("remove-pod", 5, 0.0, 1.0, number=0),)])
def test_the_simulator_notices_an_operator_that_removes_a_script_from_a_lost_node_too_early(monkeypatch, earlier):
    """Also if a person has removed another pod by force before."""
    monkeypatch.setattr(replaced_pods, "SCRIPT_FORCE_AFTER_S", 5.0)
    monkeypatch.setattr(replaced_pods, "LOST_FOR_S", 0.0)
    schedule = Schedule("a script on a lost node", Workload(replicas=1, steps=400, script=True))
    outcome = run_schedule(replace(schedule, faults=(*earlier, Fault("lose-node", 40, 0.0, 60.0, number=0))))
    last = 2 + len(earlier)
    assert outcome.violations == [f"ranks of round {last - 1} still step beside those of round {last}"]


RECREATED = Schedule(
    "a script is created again while one of its pods can't be reached",
    Workload(replicas=1, steps=200, script=True),
    (
        Fault("kill-pod", 5, 0.0, 1.0, number=0),
        Fault("cut-agent-off", 40, 0.0, 25.0, number=0),
        Fault("recreate-job", 40, 0.5, 2.0, number=0),
    ),
)


def test_no_storage_keeps_a_script_that_is_created_again_from_its_first_round():
    outcome = run_schedule(RECREATED)
    assert not outcome.violations, told(outcome)
    assert outcome.status.round == 1


def test_the_simulator_notices_a_script_that_starts_beside_its_predecessor_of_the_same_name(monkeypatch):
    monkeypatch.setattr(PodWrites, "_await_predecessor", lambda self, record: None)
    outcome = run_schedule(RECREATED)
    assert outcome.violations == ["ranks of round 2 of an earlier job still step beside those of round 1"]


def test_ranks_that_die_before_their_agent_has_opened_the_next_store_start_again():
    """Their agents end what is left of the round, and have a store to offer only after that."""

    async def die_at_once(world):
        for round in (1, 2, 3):
            while not (ranks := [r for a in world.kubelet.living() for r in a.ranks if r.round == round]):
                await asyncio.sleep(0.001)
            ranks[0].exit(1, "exit code 1", Cause.CRASH)

    outcome = simulate("early deaths", Workload(), die_at_once)
    assert not outcome.violations, told(outcome)
    assert outcome.status.round == 4
