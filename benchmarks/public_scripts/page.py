"""The table of public scripts in docs/scripts.md, from the runs that are committed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks import record
from benchmarks.markdown import busy, machines, table, wrapped
from benchmarks.public_scripts import library_scripts, titan_script, torch_scripts
from benchmarks.public_scripts.runs import OURS, PEER
from benchmarks.public_scripts.scripts import PublicScript

RESULTS = record.RESULTS / "public-scripts.jsonl"
SCRIPTS = (*torch_scripts.SCRIPTS, *library_scripts.SCRIPTS, titan_script.SCRIPT)
Row = dict[str, Any]
NOT_RUN = "not run"


def section() -> Iterator[str]:
    """Yield the lines of the block `public-scripts`."""
    rows = record.read_rows(RESULTS)
    if not rows:
        yield "No run is committed yet; `python -m benchmarks.public_scripts` makes them."
        return
    yield from wrapped(
        "Each script was run four times with the line `torchrun --standalone --nproc-per-node=N`: under torchrun "
        "with its store not shared, and as the command of a job under `trainmaster run`, each time once undisturbed "
        "(calm) and once with a process that is killed in the middle of the run. *Same* means the same bits in the "
        "saved "
        "weights or, if a script saves nothing, the same last lines. *Back after* is the time from the SIGKILL to the "
        "next step of all ranks. Some scripts end within a few seconds, so that they are killed before the zygote has "
        "learned what they import: their ranks are executed after the failure, as under torchrun. "
        f"{busy(rows)}{versions(rows)} {machines(rows)}"
    )
    yield ""
    known = [script for script in SCRIPTS if any(row["script"] == script.name for row in rows)]
    head = ["script", "calm: same end", "killed: end as", "back after, Trainmaster", "back after, torchrun"]
    yield from table(head, [line(script, rows) for script in known])
    yield ""
    yield "What was changed in these scripts, and why a killed run may end with other weights than a calm one:"
    yield ""
    for script in known:
        yield from noted(script, rates(script, rows))


def line(script: PublicScript, rows: list[Row]) -> list[str]:
    """Return the cells of a script's row."""
    name = f"{script.name} (`{script.repository}` at {script.commit[:7]})"
    calm = {system: find(rows, script, system, killed=False) for system in (OURS, PEER)}
    killed = {system: find(rows, script, system, killed=True) for system in (OURS, PEER)}
    return [
        name,
        same(calm[OURS], calm[PEER]),
        killed_end(calm, killed),
        *(back(killed[system]) for system in (OURS, PEER)),
    ]


def find(rows: list[Row], script: PublicScript, system: str, *, killed: bool) -> Row | None:
    """Return the newest run of a script of this kind, or None."""
    found = [row for row in rows if (row["script"], row["system"], row["killed"]) == (script.name, system, killed)]
    return found[-1] if found else None


def same(one: Row | None, other: Row | None) -> str:
    """Return whether two runs ended alike, in words."""
    if one is None or other is None:
        return NOT_RUN
    for row in (one, other):
        if row["exit_code"] != 0:
            return f"no: {row['system']} ended with {row['exit_code']}"
    return "yes" if one["end"] == other["end"] and one["end"] else "no"


def killed_end(calm: dict[str, Row | None], killed: dict[str, Row | None]) -> str:
    """Return what the end of our killed run is the same as."""
    ours = killed[OURS]
    if ours is None:
        return NOT_RUN
    if ours["exit_code"] != 0 or not ours["deaths"]:
        return f"ended with {ours['exit_code']}" if ours["deaths"] else "was not killed"
    others = {"a calm run": calm[OURS], "torchrun's killed run": killed[PEER]}
    if not any(others.values()):
        return "nothing to compare with was run"
    alike = [name for name, row in others.items() if row is not None and ours["end"] and row["end"] == ours["end"]]
    return " and ".join(alike) or "neither"


def back(row: Row | None) -> str:
    if row is None:
        return NOT_RUN
    seconds = [each for each in row["recoveries_s"] if each is not None]
    return f"{seconds[0]:.1f} s" if seconds else "never"


def rates(script: PublicScript, rows: list[Row]) -> str:
    """Return a sentence about the tokens per second of the calm runs, "" if the script prints none."""
    found = {system: find(rows, script, system, killed=False) for system in (OURS, PEER)}
    medians = {system: statistics.median(row["rates"]) for system, row in found.items() if row and row.get("rates")}
    if len(medians) < 2:
        return ""
    return (
        f" Tokens per second, median of its calm run: {medians[OURS]:,.0f}, under torchrun {medians[PEER]:,.0f}. In "
        "these few steps the zygote imports on the same cores what the script has imported; its speed after that is "
        "below."
    )


def noted(script: PublicScript, speed: str = "") -> Iterator[str]:
    """Yield the point of a script in the list below the table: what was changed in it, and why its end differs."""
    files: dict[tuple[str, str], int] = {}
    for change in script.changes:
        files[change.file, change.why] = files.get((change.file, change.why), 0) + 1
    changes = [f"{count} in `{file}`, because {why}" for (file, why), count in files.items()]
    told = f"Changed: {'; '.join(changes)}." if changes else "Nothing was changed."
    resumed = f" It resumes by {' '.join(script.restart)}." if script.restart else ""
    why = f" {script.why}" if script.why else ""
    first, *rest = wrapped(f"- {script.name}: {told}{resumed}{why}{speed}")
    yield first
    yield from (f"  {text}" for text in rest)


def versions(rows: list[Row]) -> str:
    found: dict[str, str] = {}
    for row in rows:
        found |= row["versions"]
    return f"Versions: {', '.join(f'{name} {version}' for name, version in found.items() if name != 'torch')}."
