"""Recovery time: the death of a rank's process -> the first step after it that all ranks have completed.

The same unmodified script runs under `trainmaster run` and under torchrun, as documented and at its best
(`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`: otherwise gloo meets stale addresses in the shared store and restarts
mostly fail). Systems take turns. Run with `make bench-recovery`; `--help` shows what can be changed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.record import Case, write

SCRIPT = Path(__file__).parent / "recovery_script.py"
PHASES = ("detect", "decide", "drain", "fork", "rendezvous", "build", "load", "first_step")


def recovery_times(log: Path, ranks: int, kills: int) -> list[float]:
    """Seconds of each recovery that came about, read from the script's stamps."""
    deaths: dict[int, int] = {}
    firsts: dict[int, dict[int, int]] = {}
    for rank in range(ranks):
        path = log / f"stamps-{rank}"
        for line in path.read_text().splitlines() if path.exists() else []:
            at, attempt, event, _ = line.split()
            if event == "death":
                deaths[int(attempt)] = int(at)
            else:
                firsts.setdefault(int(attempt), {})[rank] = int(at)
    times = []
    for attempt in range(kills):
        after = firsts.get(attempt + 1, {})
        if attempt in deaths and len(after) == ranks:
            times.append((max(after.values()) - deaths[attempt]) / 1e9)
    return times


def run(command: list[str], environment: dict[str, str], log: Path, limit_s: float) -> None:
    """Run to the end or the limit; the whole session is ended then."""
    with (log / "output").open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=output, stderr=output, start_new_session=True
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def run_job(name: str, command: list[str], log: Path, ranks: int, limit_s: float, **spec: Any) -> dict[str, Any]:
    """A script of one rank in each pod under `trainmaster run`; returns the job's last status."""
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
    run([*trainmaster, "--out", str(log / "out")], {}, log, limit_s)
    status: dict[str, Any] = yaml.safe_load((log / "out" / "status.yaml").read_text())["status"]
    return status


def under_trainmaster(
    log: Path, ranks: int, kills: int, settle: tuple[float, float], limit_s: float
) -> list[dict[str, float]]:
    """Run under `trainmaster run`; returns the phase clocks of its recoveries."""
    budget = {"inPlace": 1000, "perCause": 1000}
    status = run_job("recovery", script(log, kills, settle), log, ranks, limit_s, recovery={"budget": budget})
    return [{**r["clock"], "total": r["totalSeconds"]} for r in status.get("recoveries", []) if r.get("totalSeconds")]


def under_torchrun(log: Path, ranks: int, kills: int, settle: tuple[float, float], limit_s: float, best: bool) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", f"--max-restarts={kills}", *script(log, kills, settle)[1:]]
    run(command, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if best else {}, log, limit_s)


def script(log: Path, kills: int, settle: tuple[float, float]) -> list[str]:
    return ["python", str(SCRIPT), "--folder", str(log), "--kills", str(kills), "--settle", *map(str, settle)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--repetitions", type=int, default=3, help="runs of each system at 4 ranks; 1 at other sizes")
    parser.add_argument("--kills", type=int, default=6, help="kills in a run of ours, at 4 ranks; half at other sizes")
    parser.add_argument("--peer-kills", type=int, default=3, help="kills in a run under torchrun, at 4 ranks")
    parser.add_argument("--peer-ranks", type=int, default=8, help="the largest size that torchrun is asked for too")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/ as it is")
    args = parser.parse_args()

    cases: list[Case] = []
    for ranks in args.ranks:
        ours = Case(f"{ranks} ranks", "trainmaster", "s")
        best = Case(f"{ranks} ranks", "torchrun, store not shared", "s")
        documented = Case(f"{ranks} ranks", "torchrun, as documented", "s")
        failed = Case(f"{ranks} ranks, restarts that failed", "torchrun, as documented", "restarts")
        at_length = ranks == 4
        systems = [ours] + ([best] if ranks <= args.peer_ranks else []) + ([documented] if at_length else [])
        clocks: list[dict[str, float]] = []
        for repetition in range(args.repetitions if at_length else 1):
            turn = repetition % len(systems)
            for case in systems[turn:] + systems[:turn]:
                log = Path(tempfile.mkdtemp(prefix="bench-recovery-"))
                try:
                    if case is ours:
                        kills = args.kills if at_length else max(1, args.kills // 2)
                        # Before its first kill the zygote has learned; later rounds fork from it.
                        settle = (10 + ranks / 2, 2 + ranks / 8)
                        # Each rank of the first round imports torch for itself: some 10 s of a core.
                        limit_s = 120 + 12 * ranks + kills * (10 + ranks)
                        clocks += under_trainmaster(log, ranks, kills, settle, limit_s)
                    else:
                        kills = args.peer_kills if at_length else 1
                        patience_s = 60 + kills * 12 * ranks if case is best else 60
                        under_torchrun(log, ranks, kills, (4.0, 4.0), patience_s, case is best)
                    times = recovery_times(log, ranks, kills)
                    case.samples += times
                    if case is documented:
                        failed.samples.append(kills - len(times))
                    told = " ".join(f"{t:.3f}" for t in times) or "no recovery"
                    print(f"{case.case:10} {case.system:28} {told}", flush=True)
                finally:
                    shutil.rmtree(log)
        cases += [*systems, *([failed] if at_length else [])]
        cases += [
            Case(f"{ranks} ranks, phase {name}", "trainmaster", "s", [clock[name] for clock in clocks if name in clock])
            for name in (*PHASES, "total")
        ]
    if not args.no_write:
        print(f"written to {write('recovery', cases)}")
    print(table(cases))


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
    main()
