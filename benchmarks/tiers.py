"""Recovery by checkpoint tier: the death of a process or a pod -> the first step that all ranks have completed again.

A model sharded over pods (FSDP) loses a shard in each round. It comes back from the pod's own memory, from a peer's,
or from storage; sizes are those of the whole state. `--help` shows what can be changed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import commands, counts
from benchmarks.record import Case, name_of, write
from benchmarks.recovery import recovery_times, run_job, table
from trainmaster_operator.cli.display.recovery_tables import PHASES

MEGABYTES = [10, 100, 1000]  # of state
SCRIPT = Path(__file__).parent / "tiers_script.py"


@dataclass(frozen=True)
class Tier:
    name: str
    strike: str  # process or pod
    ram: dict[str, Any]
    save_every: int
    tier: str  # that every recovery must have come from


TIERS = (
    Tier("own RAM, process killed", "process", {"every": 1, "peers": 0}, 0, "ram"),
    Tier("storage, process killed", "process", {"limit": "0"}, 5, "storage"),
    Tier("peer RAM, pod killed", "pod", {"every": 1, "peers": 1}, 0, "peer"),
    Tier("storage, pod killed", "pod", {"limit": "0"}, 5, "storage"),
)


def measured(tier: Tier, folder: Path, megabytes: int, ranks: int, kills: int) -> tuple[list[float], dict[str, Any]]:
    """(seconds of each recovery, the job's last status)."""
    settle_s = 1.0 + megabytes / 100
    command = ["python", str(SCRIPT), "--folder", str(folder), "--megabytes", str(megabytes), "--kills", str(kills)]
    command += ["--strike", tier.strike, "--save-every", str(tier.save_every), "--settle", str(settle_s)]
    limit = {} if "limit" in tier.ram else {"limit": f"{max(256, 8 * megabytes // ranks)}Mi"}
    limit_s = 180 + kills * (60 + megabytes / 10)
    ram = {"ram": {**tier.ram, **limit}}
    budget = {"inPlace": 1000, "pod": 1000, "perCause": 1000}
    status = run_job("tiers", command, folder, ranks, limit_s, checkpoint=ram, recovery={"budget": budget})
    return recovery_times(folder, ranks, kills), status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=MEGABYTES, help="of state")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--kills", type=int, default=3, help="in each run; each is a sample")
    parser.add_argument("--no-write", action="store_true", help="leave benchmarks/results/ as it is")
    args = parser.parse_args()
    counts.check(parser, args, megabytes=1, ranks=2, kills=1)

    cases: list[Case] = []
    wrong = []
    for megabytes in args.megabytes:
        for tier in TIERS:
            what = f"{megabytes} MB, {args.ranks} ranks"
            folder = Path(tempfile.mkdtemp(prefix="bench-tiers-"))
            try:
                times, status = measured(tier, folder, megabytes, args.ranks, args.kills)
                recoveries = status.get("recoveries", [])
                tiers = [r.get("tier") for r in recoveries if r.get("tier")]
                if len(times) < args.kills or any(found != tier.tier for found in tiers):
                    wrong.append(f"{what}, {tier.name}: {len(times)} recoveries, from {tiers}")
                    print((folder / "output").read_text()[-4000:], flush=True)
            finally:
                shutil.rmtree(folder)
            cases.append(Case(what, tier.name, "s", times))
            clocks = [r["clock"] for r in recoveries if r.get("totalSeconds")]
            for phase in PHASES:
                samples = [clock[phase] for clock in clocks if phase in clock]
                if samples:
                    cases.append(Case(f"{what}, phase {phase}", tier.name, "s", samples))
            lost = [float(r["lostSteps"]) for r in recoveries if r.get("lostSteps") is not None]
            cases.append(Case(f"{what}, lost", tier.name, "steps", lost))
            print(f"{what:20} {tier.name:24} {' '.join(f'{t:.3f}' for t in times) or 'no recovery'}", flush=True)
    if not args.no_write and not wrong:  # a time would stand under a tier that it is not of
        print(f"written to {write(name_of('tiers', args.megabytes, MEGABYTES), cases)}")
    print(table(cases))
    for line in wrong:
        print(f"not as expected: {line}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    with commands.sigterm_exits():
        main()
