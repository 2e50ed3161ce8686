"""`trainmaster prove`: does a job whose ranks are killed again and again train the same model as one without faults?"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainmaster_operator.api.job_spec import DistributedTrainingJob, Framework
from trainmaster_operator.cli import output_folder
from trainmaster_operator.cli.fault_injection import unfired_faults
from trainmaster_operator.cli.job_files.validate_job import load_job
from trainmaster_operator.cli.refusal import EXIT_CODE, Refusal
from trainmaster_operator.cli.run import local_processes, run_comparison
from trainmaster_operator.cli.run.run_comparison import Difference
from trainmaster_operator.cli.stored_state import state_of
from trainmaster_operator.cli.this_machine import cuda_devices, device_plan
from trainmaster_operator.planning.facts.counted_nouns import counted

MOST_KILLS = 8
STOPPED = 130


@dataclass(frozen=True)
class ProveOptions:
    """The arguments of `trainmaster prove`."""

    job: Path
    out: Path | None = None
    kills: int = 3
    seed: int | None = None
    tolerance: float = 0.0
    plain: bool = False


def prove(options: ProveOptions) -> int:
    """Run the job twice and compare the runs. Return 0 if they are equal, 1 if they are not, 130 if it was stopped.
    Raise Refusal."""
    if not 1 <= options.kills <= MOST_KILLS:
        raise Refusal(f"--kills {options.kills}: must be 1 to {MOST_KILLS}")
    if not 0 <= options.tolerance < 1:
        raise Refusal(f"--tolerance {options.tolerance:g}: a relative difference such as 1e-6 is expected")
    _, job = load_job(options.job)
    out = options.out or Path("runs") / f"prove-{job.metadata.name}"
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)

    _say(f"First, {job.metadata.name} runs undisturbed.")
    code = _run(options, out / "calm", ())
    if code == STOPPED:
        return code
    if code:
        # The run itself has printed its refusal.
        raise Refusal(*([] if code == EXIT_CODE else [f"{options.job}: the job fails without any kill, see above"]))
    steps = _steps(out / "calm")
    calm = run_comparison.read(out / "calm")
    if not calm.records:
        raise Refusal(f"{options.job}: nothing can be compared{_why_nothing(job)}")

    faults = _faults(random.Random(seed), steps, job.spec.world_size, options.kills)
    _say(f"\nNow {', '.join(_describe_fault(fault) for fault in faults)} (--seed {seed} repeats this).")
    code = _run(options, out / "killed", [f"kill:rank={rank},step={step}" for rank, step in faults])
    if code == STOPPED:
        return code
    if code == unfired_faults.EXIT_CODE:
        _say("\nNot proven: not every kill happened, see above.")
        return 1
    if code:
        _say("\nNot proven: the job does not survive the kills, see above.")
        return 1
    killed = run_comparison.read(out / "killed")
    found = run_comparison.compare(calm, killed, options.tolerance)
    _say("")
    for line in verdict(found, job, steps, len(faults), options.tolerance, on_devices=_have_devices(job)):
        _say(line)
    return 0 if found is None else 1


def verdict(
    found: Difference | None,
    job: DistributedTrainingJob,
    steps: int,
    kills: int,
    tolerance: float,
    *,
    on_devices: bool = False,
) -> Iterator[str]:
    """Yield sentences about the result. `on_devices`: ranks may have computed on CUDA devices."""
    who = f"{counted(job.spec.world_size, 'rank')}, {counted(steps, 'step')}, {counted(kills, 'kill')}"
    if found is None:
        within = f"to within {tolerance:g}" if tolerance else "bit for bit, and so is every state after every step"
        yield f"Proven: {who}. The losses are those of the undisturbed run, {within}."
        return
    if found.resumed is None:
        yield (
            f"Not proven: the two runs differ in step {found.step}, before the first kill. The job is not "
            "deterministic: make sure that all seeds are fixed, and that its kernels are deterministic "
            "(torch.use_deterministic_algorithms)."
        )
        if found.unseeded:
            yield f"  different from the start: {', '.join(found.unseeded)}"
    elif found.restored:
        yield f"Not proven: what was restored from the checkpoint of step {found.step} differs from what was saved."
    else:
        yield (
            f"Not proven: step {found.step} is the first that differs; its round had resumed after step "
            f"{found.resumed}."
        )
    if found.losses is not None:
        calm, killed = (f"{loss!r}" if loss is not None else "none" for loss in found.losses)
        yield f"  its loss: {calm} undisturbed, {killed} after the kill"
    for name, ranks in sorted(found.held.items()):
        yield f"  {name}: differs on {_ranks(ranks, job.spec.world_size)}"
    yield from _cause(found, job, on_devices)


def _cause(found: Difference, job: DistributedTrainingJob, on_devices: bool) -> Iterator[str]:
    if found.resumed is None:
        return
    if found.restored:
        yield "The object that holds this has a load_state_dict() that does not restore what its state_dict() returned."
    for name, kind in sorted(found.suspects.items()):
        yield (
            f"{name} (a {kind}) is not in tm.State, and it was different from what it was at step {found.resumed}: "
            f"add it, tm.State(..., {_identifier(name)}={name})."
        )
    if found.suspects or found.restored:
        return
    if job.spec.framework is Framework.TRAINMASTER:
        yield "Everything in the checkpoint was restored as it was saved. Trainmaster has a bug: please report it."
        return
    yield "Everything in tm.State was restored as it was saved, so something outside of it is different."
    for name, kind in sorted(found.unknown.items()):
        yield f"  perhaps {name} (a {kind}): it has a position, and starts from the beginning after a restart"
    if not found.unknown:
        yield "  perhaps a state of another module, a file that the script writes, or the time"
    if on_devices:
        yield (
            "  possible cause: a kernel that sums numbers in a different order each time. `trainmaster prove` makes "
            "kernels deterministic only in Trainmaster's own trainer. "
            "A script on CUDA devices needs torch.use_deterministic_algorithms(True) and the "
            "variable CUBLAS_WORKSPACE_CONFIG=:4096:8"
        )


def _have_devices(job: DistributedTrainingJob) -> bool:
    """Return whether a run of the job gives its ranks CUDA devices, if no other run holds them, or may do so."""
    need, present = device_plan.need(job.spec), cuda_devices.present(os.environ)
    given = device_plan.decide(need, present, (present or [])[: need.most if need is not None else 0])
    return given.names != () and present != []


def _identifier(name: str) -> str:
    return name.rpartition(".")[2].lstrip("_") or "it"


def _ranks(ranks: Sequence[int], world_size: int) -> str:
    if len(ranks) == world_size:
        return "all ranks" if world_size > 1 else "its only rank"
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, sorted(ranks)))}"


def _faults(chance: random.Random, steps: int, world_size: int, kills: int) -> list[tuple[int, int]]:
    """Return (rank, step) of each kill, ordered by step; never in the last step, after which nothing could differ."""
    choice = range(2, steps)
    if not choice:
        raise Refusal(
            f"the job has {counted(steps, 'step')}, but at least 3 are needed, so that a step between the first "
            "and the last can be lost"
        )
    chosen = sorted(chance.sample(choice, min(kills, len(choice))))
    return [(chance.randrange(world_size), step) for step in chosen]


def _describe_fault(fault: tuple[int, int]) -> str:
    """Return in words which rank is killed in which step."""
    return f"rank {fault[0]} is killed in step {fault[1]}"


def _steps(out: Path) -> int:
    resource = output_folder.read_status(out)
    return state_of(resource).progress.step if resource is not None else 0


def _why_nothing(job: DistributedTrainingJob) -> str:
    if job.spec.framework is Framework.TRAINMASTER:
        return ""
    return ": the script does not report its states; it needs `run = tm.init()` and `for step in run.steps(state, ...)`"


def _run(options: ProveOptions, out: Path, faults: Sequence[str]) -> int:
    """Run the job once in a process of its own, which prints as always. Return its exit code."""
    command = [sys.executable, "-m", "trainmaster_operator.cli.main", "run", str(options.job), "--out", str(out)]
    command += ["--fresh", "--digests", "--quiet", *(["--plain"] if options.plain else [])]
    for fault in faults:
        command += ["--fault", fault]
    with subprocess.Popen(command, preexec_fn=local_processes.tied(signal.SIGKILL)) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # The child got the same signal and stops.
                continue


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
