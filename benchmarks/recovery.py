"""Recovery time: the death of a rank's process -> the first step after it that all ranks have completed.

    python -m benchmarks.recovery [--ranks 4 8 16 32] [--runs 3] [--scripts torch light] [--seconds 300]

The same unmodified script runs under `trainmaster run` and under torchrun, as documented and at its best
(`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`: otherwise gloo meets stale addresses in the shared store and restarts
mostly fail). Systems take turns, and each is run several times, from its start to its end: the ratio of the medians of
one run differs from the next one's. There are two scripts: plain DDP, which imports torch, and one that imports
nothing, whose restart is the restart alone. Each run is added to the file of results once it is over, with the load of
the machine before it, and isn't made again: so the benchmark can be stopped, and goes on where it was.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks import commands, load, record, recovery_stamps
from benchmarks.clocks import closed_clocks
from benchmarks.record import Case
from trainmaster_operator.planning.status_mapping import read_status

RESULTS = record.RESULTS / "recovery.jsonl"
SCRIPT = Path(__file__).parent / "recovery_script.py"
SCRIPTS = {"torch": SCRIPT, "light": Path(__file__).parent / "recovery_light_script.py"}
PHASES = ("detect", "decide", "drain", "fork", "imports", "rendezvous", "build", "load", "first_step")
OURS, BEST, DOCUMENTED = "trainmaster", "torchrun, store not shared", "torchrun, as documented"
AT_LENGTH = 4  # ranks: the size that is run most


@dataclass(frozen=True)
class Run:
    """One start of one system. The same run is made once only."""

    number: int  # from 1
    ranks: int
    script: str
    system: str

    def is_of(self, row: dict[str, Any]) -> bool:
        return all(row[name] == value for name, value in asdict(self).items())


def recovery_times(log: Path, ranks: int, kills: int) -> list[float]:
    """Seconds of each recovery that came about, read from the script's stamps."""
    return recovery_stamps.times(recovery_stamps.read(log, ranks), ranks, kills)


def run_job(name: str, command: list[str], log: Path, ranks: int, limit_s: float, **spec: Any) -> dict[str, Any]:
    """A script of one rank in each pod under `trainmaster run`; returns the job's last status.

    Raises SystemExit, with the end of what the command said, if there is no status.
    """
    job = {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": {
            "framework": "PyTorch",
            "workers": {
                "replicas": ranks,
                "template": {"spec": {"containers": [{"name": "worker", "command": command}]}},
            },
            **spec,
        },
    }
    path = log / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    trainmaster = [sys.executable, "-m", "trainmaster_operator.cli.main", "run", str(path), "--plain"]
    commands.run([*trainmaster, "--out", str(log / "out")], {}, log / "output", limit_s)
    stored = log / "out" / "status.yaml"
    if not stored.exists():
        raise SystemExit(_said(log, "the job has no status"))
    return read_status(yaml.safe_load(stored.read_text())["status"]).model_dump(mode="json", exclude_none=True)


def _said(log: Path, why: str) -> str:
    output = log / "output"
    return f"{output.read_text(errors='replace')[-3000:] if output.exists() else ''}\n{why}, see above"


def under_trainmaster(log: Path, words: list[str], ranks: int, limit_s: float) -> list[dict[str, float]]:
    """Run a script under `trainmaster run`; returns the phase clocks of its recoveries."""
    budget = {"inPlace": 1000, "perCause": 1000}
    return closed_clocks(run_job("recovery", ["python", *words], log, ranks, limit_s, recovery={"budget": budget}))


def under_torchrun(log: Path, words: list[str], ranks: int, kills: int, limit_s: float, best: bool) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", f"--max-restarts={kills}", *words]
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if best else {}
    commands.run(command, variables, log / "output", limit_s)


def measure(run: Run, kills: int, settle: tuple[float, float]) -> dict[str, Any]:
    """Make a run; return its row: each recovery, the parts of it, and how busy the machine was before.

    settle: seconds from a round's first step to its kill, of the first round and of later ones. Raises SystemExit if no
    rank was killed: a run that ended before says nothing about recoveries, and must not stand for one that had none.
    """
    before = load.look()
    log = Path(tempfile.mkdtemp(prefix="bench-recovery-"))
    words = [str(SCRIPTS[run.script]), "--folder", str(log), "--kills", str(kills), "--settle", *map(str, settle)]
    clocks: list[dict[str, float]] = []
    try:
        if run.system == OURS:
            # Each rank of the first round imports torch for itself: some 10 s of a core.
            limit_s = 120 + 12 * run.ranks + kills * (10 + run.ranks)
            clocks = under_trainmaster(log, words, run.ranks, limit_s)
        else:
            limit_s = 60 + kills * 12 * run.ranks if run.system == BEST else 60
            under_torchrun(log, words, run.ranks, kills, limit_s, run.system == BEST)
        stamps = recovery_stamps.read(log, run.ranks)
        if not any(stamp.event == "death" for stamp in stamps):
            raise SystemExit(_said(log, f"recovery: {run.system}, {run.ranks} ranks: no rank came as far as its kill"))
    finally:
        shutil.rmtree(log)
    times = recovery_stamps.times(stamps, run.ranks, kills)
    parts = recovery_stamps.parts(stamps, run.ranks, kills)
    return {
        **asdict(run),
        "kills": kills,
        "seconds": [round(seconds, 4) for seconds in times],
        "parts": [{name: round(seconds, 4) for name, seconds in each.items()} for each in parts],
        "clocks": clocks,
        "busy_cores_before": round(before.busy, 3),
        "stolen_cores_before": round(before.stolen, 3),
    }


def samples(rows: list[dict[str, Any]], ranks: int, script: str, system: str) -> list[float]:
    """Return the recoveries of all runs of these."""
    return [seconds for row in _of(rows, ranks, script, system) for seconds in row["seconds"]]


def ratios(rows: list[dict[str, Any]], ranks: int, script: str) -> list[float]:
    """Return, of each run that both systems have, torchrun's median (at its best) over ours."""
    ours, peers = (
        {row["number"]: row["seconds"] for row in _of(rows, ranks, script, system) if row["seconds"]}
        for system in (OURS, BEST)
    )
    return [
        statistics.median(peers[number]) / statistics.median(ours[number]) for number in sorted(ours.keys() & peers)
    ]


def part_medians(rows: list[dict[str, Any]], ranks: int, script: str, system: str) -> dict[str, float]:
    """Return the median seconds of each part of these recoveries; nothing if none came about."""
    parts = [part for row in _of(rows, ranks, script, system) for part in row["parts"]]
    return {name: statistics.median(part[name] for part in parts) for name in recovery_stamps.PARTS} if parts else {}


def _of(rows: list[dict[str, Any]], ranks: int, script: str, system: str) -> list[dict[str, Any]]:
    return [row for row in rows if (row["ranks"], row["script"], row["system"]) == (ranks, script, system)]


def planned(given: argparse.Namespace) -> list[Run]:
    """Return all runs in their order; systems take turns. The documented way is tried once: it doesn't recover."""
    found = []
    for number in range(1, given.runs + 1):
        for ranks in given.ranks:
            for script in given.scripts:
                systems = [OURS, BEST] if ranks <= given.peer_ranks else [OURS]
                systems = systems[::-1] if number % 2 == 0 else systems
                if number == 1 and ranks == AT_LENGTH and script == "torch":
                    systems.append(DOCUMENTED)
                found += [Run(number, ranks, script, system) for system in systems]
    return found


def read(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.recovery", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--runs", type=int, default=3, help="of each system, each from its start to its end")
    parser.add_argument("--kills", type=int, default=6, help="kills in a run of ours, at 4 ranks; half at other sizes")
    parser.add_argument("--peer-kills", type=int, default=3, help="in a run under torchrun, at 4 ranks; 1 at others")
    parser.add_argument("--peer-ranks", type=int, default=8, help="the largest size that torchrun is asked for too")
    parser.add_argument("--scripts", nargs="+", choices=list(SCRIPTS), default=list(SCRIPTS))
    parser.add_argument("--settle", type=float, help="seconds before a kill (default: by the number of ranks)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="runs that are there already are not made again")
    parser.add_argument("--seconds", type=float, default=86400.0, help="begin no further run after so many")
    given = parser.parse_args(arguments)
    for name in ("runs", "kills", "peer_kills"):
        if getattr(given, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(given, name)}: at least 1 is needed")
    if min(given.ranks) < 2:
        parser.error(f"--ranks {min(given.ranks)}: at least 2 are needed, one of which dies")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = read(arguments)
    deadline = time.monotonic() + given.seconds
    for run in planned(given):
        if any(run.is_of(row) for row in record.read_rows(given.results)):
            continue
        if time.monotonic() > deadline:
            print("not over yet: the same command goes on", flush=True)
            break
        most, share = (given.kills, 2) if run.system == OURS else (given.peer_kills, given.peer_kills)
        kills = most if run.ranks == AT_LENGTH else max(1, most // share)
        # Before its first kill the zygote has learned; later rounds fork from it.
        settle = (10 + run.ranks / 2, 2 + run.ranks / 8) if run.system == OURS else (4.0, 4.0)
        row = measure(run, kills, settle if given.settle is None else (given.settle, given.settle))
        record.append_row(given.results, row)
        told = " ".join(f"{seconds:.3f}" for seconds in row["seconds"]) or "no recovery"
        print(f"run {run.number}, {run.ranks:2} ranks, {run.script:5} {run.system:28} {told}", flush=True)
    rows = record.read_rows(given.results)
    for ranks in given.ranks:
        for script in given.scripts:
            found = ratios(rows, ranks, script)
            if found:
                print(f"{ranks} ranks, {script}: torchrun takes {min(found):.1f} to {max(found):.1f} times as long")
    return 0


def table(cases: list[Case]) -> str:
    """What a person reads: median, p95 and count of each case."""
    rows = [f"{'case':34} {'system':28} {'median':>9} {'p95':>9} {'n':>4}"]
    for case in cases:
        if case.samples:
            rows.append(
                f"{case.case:34} {case.system:28} {case.median:9.3f} {case.quantile(0.95):9.3f} {len(case.samples):4}"
            )
        else:
            rows.append(f"{case.case:34} {case.system:28} {'none':>9} {'':>9} {0:4}")
    return "\n".join(rows)


if __name__ == "__main__":
    with commands.sigterm_exits():
        sys.exit(main())
