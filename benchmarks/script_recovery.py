"""From a rank's death to the next step, for scripts of other people's libraries, beside torchrun.

    python -m benchmarks.script_recovery --sources DIR [--runs 2] [--kills 3] [--only NAME ...] [--seconds 3600]

Four public scripts (`benchmarks.public_scripts` says what DIR holds) are run long: plain DDP, HF Trainer, Lightning's
Trainer and Accelerate. A rank is killed again and again: under Trainmaster not before the zygote has had the time to
learn what the script imports. The time is that from the SIGKILL to the moment at which every rank has completed a step.
Systems take turns. Each run is added to the file of results once it is over, and isn't made again.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import commands, kill_options, load, record
from benchmarks.markdown import machines, table, wrapped
from benchmarks.public_scripts import data, library_scripts, stamps, torch_scripts
from benchmarks.public_scripts.runs import OURS, PEER, Started, facts
from benchmarks.public_scripts.scripts import BadSources, PublicScript, check_chosen
from benchmarks.public_scripts.stamps import Kill

RESULTS = record.RESULTS / "script-recovery.jsonl"
LOOK_EVERY_S = 0.5
PACE_S = 0.1
_LONG = "1000000"


def lengthened() -> tuple[PublicScript, ...]:
    """Return the four scripts with options by which they outlast all kills. None resumes: it is the restart that is
    measured, not the loading of a checkpoint."""
    known = {script.name: script for script in (*torch_scripts.SCRIPTS, *library_scripts.SCRIPTS)}
    ddp, clm = known["DDP tutorial, snapshots"], known["transformers run_clm"]
    lightning, accelerate = known["Lightning CLI, autoencoder"], known["accelerate nlp_example"]
    many = data.all_of(
        partial(data.language_model, path="bert-base-cased", model=True), partial(data.glue, train=40000)
    )
    return (
        dataclasses.replace(ddp, name="plain DDP", words=("multigpu_torchrun.py", _LONG, "1", "--batch_size", "64")),
        dataclasses.replace(
            clm,
            name="HF Trainer (run_clm)",
            words=tuple({"40": _LONG, "10": _LONG}.get(word, word) for word in clm.words),
            restart=(),
        ),
        dataclasses.replace(
            lightning,
            name="Lightning (CLI, autoencoder)",
            words=tuple(
                f"--trainer.max_epochs={_LONG}" if word.startswith("--trainer.max_epochs") else word
                for word in lightning.words
            ),
        ),
        dataclasses.replace(accelerate, name="Accelerate (nlp_example)", prepare=many),
    )


def measure(
    script: PublicScript, sources: Path, system: str, kills: int, settle: tuple[float, float], limit_s: float
) -> dict[str, Any]:
    """Run a script until as many kills are recovered from, or `limit_s` is over; return the row."""
    before = load.look()
    with tempfile.TemporaryDirectory(prefix="script-recovery-") as made:
        kill = Kill(script.victim, 3, kills, settle)
        deadline = time.monotonic() + limit_s
        with Started(script, sources, system, kill, PACE_S, Path(made)) as started:
            while started.process.poll() is None and time.monotonic() < deadline:
                found = stamps.recoveries(*started.stamped())
                if len(found) == kills and found[-1] is not None:
                    break
                time.sleep(LOOK_EVERY_S)
            ended = started.process.poll()
        found = stamps.recoveries(*started.stamped())
        row = {
            **facts(script, system),
            "kills": kills,
            "seconds": [round(each, 3) for each in found if each is not None],
            "told": started.recovered(),
            "ended_early": ended is not None,
            "busy_cores_before": round(before.busy, 2),
        }
        return row if row["seconds"] else {**row, "output": started.output()[-1500:]}


def main(arguments: Sequence[str] | None = None, scripts: Sequence[PublicScript] | None = None) -> int:
    chosen = lengthened() if scripts is None else scripts
    given = read(arguments, [script.name for script in chosen])
    deadline = time.monotonic() + given.seconds
    for number in range(1, given.runs + 1):
        for script in chosen:
            if given.only and script.name not in given.only:
                continue
            for system in (OURS, PEER) if number % 2 else (PEER, OURS):
                key = {"number": number, "script": script.name, "system": system}
                if any(key.items() <= row.items() for row in record.read_rows(given.results)):
                    continue
                if time.monotonic() > deadline:
                    print("not over yet: the same command goes on", flush=True)
                    return 0
                # torchrun has nothing to learn before its first kill.
                settle = (given.settle[0 if system == OURS else 1], given.settle[1])
                try:
                    with commands.sigterm_exits():
                        row = measure(script, given.sources, system, given.kills, settle, given.limit)
                except BadSources as error:
                    sys.stderr.write(f"benchmarks.script_recovery: {error}\n")
                    return 2
                record.append_row(given.results, {**key, **row})
                told = " ".join(f"{seconds:.2f}" for seconds in row["seconds"]) or "no recovery"
                print(f"run {number}, {script.name:30} {system:11} {told}", flush=True)
    for name, ours, peer in medians(record.read_rows(given.results)):
        print(f"{name:30} median {ours:.2f} s, torchrun {peer:.2f} s")
    return 0


def medians(rows: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """Return (script, our median, torchrun's) in seconds, of each script that has recovered under both."""
    found = []
    for name in dict.fromkeys(row["script"] for row in rows):
        ours, peer = (samples(rows, name, system) for system in (OURS, PEER))
        if ours and peer:
            found.append((name, statistics.median(ours), statistics.median(peer)))
    return found


def section() -> Iterator[str]:
    """Yield the lines of the block `script-recovery` in docs/scripts.md."""
    rows = record.read_rows(RESULTS)
    found = medians(rows)
    if not found:
        yield "No run is committed yet; `python -m benchmarks.script_recovery` makes them."
        return
    yield from wrapped(f"Seconds from the SIGKILL to the next step of all ranks. {machines(rows)}")
    yield ""
    cells = []
    for name, ours, peer in found:
        counts = [str(len(samples(rows, name, system))) for system in (OURS, PEER)]
        cells.append([name, f"{ours:.2f} s", f"{peer:.2f} s", f"{peer / ours:.1f} times", " and ".join(counts)])
    yield from table(["script", "Trainmaster", "torchrun", "torchrun takes", "recoveries"], cells)


def samples(rows: list[dict[str, Any]], name: str, system: str) -> list[float]:
    """Return the recoveries of all runs of a script under a system."""
    return [each for row in rows if (row["script"], row["system"]) == (name, system) for each in row["seconds"]]


def read(arguments: Sequence[str] | None, names: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.script_recovery", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=Path, required=True, metavar="DIR", help="folder of the snapshots")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these scripts only")
    kill_options.add(parser, runs=2, kills=3, limit_s=400.0, results=RESULTS)
    given = parser.parse_args(arguments)
    check_chosen(parser, given, names)
    kill_options.check(parser, given)
    return given


if __name__ == "__main__":
    sys.exit(main())
