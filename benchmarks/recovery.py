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


def under_trainmaster(
    log: Path, ranks: int, kills: int, settle: tuple[float, float], limit_s: float
) -> list[dict[str, float]]:
    """Run under `trainmaster run`; returns the phase clocks of its recoveries."""
    job = {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "recovery"},
        "spec": {
            "framework": "PyTorch",
            "workers": {
                "replicas": ranks,
                "template": {"spec": {"containers": [{"name": "worker", "command": script(log, kills, settle)}]}},
            },
            "recovery": {"budget": {"inPlace": 1000, "perCause": 1000}},
        },
    }
    path = log / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "trainmaster_operator.cli.main"]
    run([*command, "run", str(path), "--plain", "--out", str(log / "out")], {}, log, limit_s)
    status = yaml.safe_load((log / "out" / "status.yaml").read_text())["status"]
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
    parser.add_argument("--repetitions", type=int, default=5, help="runs of each system at 4 ranks; 2 at other sizes")
    parser.add_argument("--kills", type=int, default=5, help="kills in a run")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/ as it is")
    args = parser.parse_args()

    cases: list[Case] = []
    for ranks in args.ranks:
        ours = Case(f"{ranks} ranks", "trainmaster", "s")
        best = Case(f"{ranks} ranks", "torchrun, store not shared", "s")
        documented = Case(f"{ranks} ranks", "torchrun, as documented", "s")
        failed = Case(f"{ranks} ranks, restarts that failed", "torchrun, as documented", "restarts")
        clocks: list[dict[str, float]] = []
        settle = (20.0 + ranks, 4.0 + ranks / 4)
        repetitions = args.repetitions if ranks == 4 else min(2, args.repetitions)
        for repetition in range(repetitions):
            systems = [ours, best] + ([documented] if ranks == 4 else [])
            for case in systems[repetition % 2 :] + systems[: repetition % 2]:
                # torchrun's first kill needs no long settling, and each of its restarts takes seconds.
                kills = args.kills if case is ours or ranks == 4 else 2
                log = Path(tempfile.mkdtemp(prefix="bench-recovery-"))
                try:
                    limit_s = 60 + settle[0] + kills * (settle[1] + 10 + 2 * ranks)
                    if case is ours:
                        clocks += under_trainmaster(log, ranks, kills, settle, limit_s)
                    else:
                        patience = limit_s if case is best else 60
                        under_torchrun(log, ranks, kills, (4.0, settle[1]), patience, case is best)
                    times = recovery_times(log, ranks, kills)
                    case.samples += times
                    if case is documented:
                        failed.samples.append(kills - len(times))
                    print(f"{case.case:10} {case.system:28} " + " ".join(f"{t:.3f}" for t in times), flush=True)
                finally:
                    shutil.rmtree(log)
        cases += [ours, best]
        cases += [documented, failed] if ranks == 4 else []
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
