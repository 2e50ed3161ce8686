"""Seeds twelve incidents and draws the dashboards as on-call sees them: `python -m docs.pictures.render.incidents`.

Each incident has a folder with a number for a name, and in it a picture of each dashboard, one of *Job* for each job.
Nothing in the folder says what the incident is. Whoever has not seen the code looks at the pictures and names the job,
the cause and what to type next; the answers are written to a file elsewhere.

The operators, the jobs and the Prometheus are real and run on this machine for some minutes each, several incidents at
a time. What Prometheus has scraped is kept, so that `--draw` draws it again after a change of the dashboards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.pictures.render.drawing import asked, build, lacking, shoot
from docs.pictures.render.replica import NAMESPACE
from docs.pictures.render.seeded import INCIDENTS, Incident, perform
from docs.pictures.render.stage import opened, zygote
from tests.dashboards import asking
from tests.dashboards.prometheus import serving
from trainmaster_operator.cli.run import local_processes

RUNS = Path(__file__).parents[3] / "runs"
FINEST_S = 2.0
RATE_INTERVAL_S = 10.0
"""Some scrapes."""
WINDOW = "window.json"
MODULE = "docs.pictures.render.incidents"

Json = dict[str, Any]


@dataclass(frozen=True)
class Window:
    """What the pictures of one incident show. Times are seconds since 1970."""

    begin_s: float
    end_s: float
    jobs: tuple[tuple[str, str], ...]
    """Namespace and name of each."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m docs.pictures.render.incidents",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", type=int, action="append", metavar="N", help="the incident of this number (default: all)")
    add("--out", type=Path, default=RUNS / "incidents", help="folder of the pictures (default: runs/incidents)")
    add("--data", type=Path, default=RUNS / "incidents-data", help="folder of what was scraped")
    add("--together", type=int, default=2, metavar="N", help="incidents that are seeded at a time (default: 2)")
    add("--zygote", type=Path, help=argparse.SUPPRESS)  # the socket of one that serves already
    steps = parser.add_mutually_exclusive_group()
    steps.add_argument("--seed", action="store_true", help="seed only, and draw nothing")
    steps.add_argument("--draw", action="store_true", help="draw only, what was seeded before")
    options = parser.parse_args(arguments)
    chosen = [incident for incident in INCIDENTS if options.only is None or incident.number in options.only]
    if not options.seed and (program := lacking()):
        sys.stderr.write(f"{program} is not on the PATH; the pictures are drawn with it\n")
        return 2
    if options.zygote is not None:
        for incident in chosen:
            asyncio.run(seed(incident, place(options.data, incident), options.zygote))
        return 0
    failed: list[str] = []
    if not options.draw:
        failed = asyncio.run(seed_all(chosen, options.data, options.together))
        options.data.joinpath("answers.md").write_text(answers(INCIDENTS))
        sys.stdout.write(f"{options.data / 'answers.md'}: what is to be named\n")
    if not options.seed:
        build()
        for incident in chosen:
            if (place(options.data, incident) / WINDOW).exists():
                draw(place(options.data, incident), options.out / f"{incident.number:02}")
    for words in failed:
        sys.stderr.write(f"{words}\n")
    return 1 if failed else 0


def place(data: Path, incident: Incident) -> Path:
    return data / f"{incident.number:02}"


async def seed_all(incidents: Sequence[Incident], data: Path, together: int) -> list[str]:
    """Seed incidents, each in a process of its own, so that none waits for another one's store, the longest first.
    Return a sentence for each that failed."""
    turns = asyncio.Semaphore(together)
    failed = []
    logs = data / "logs"
    logs.mkdir(parents=True, exist_ok=True)

    async def one(incident: Incident, socket: Path) -> None:
        arguments = ["--seed", "--only", str(incident.number), "--data", str(data), "--zygote", str(socket)]
        log = logs / f"{incident.number:02}.log"
        async with turns:
            process = await local_processes.start(MODULE, arguments, log, signal.SIGTERM, os.environ)
            if await process.wait() == 0:
                sys.stdout.write(f"incident {incident.number:02} is seeded\n")
            else:
                failed.append(f"incident {incident.number:02} failed: {local_processes.last_line(log)}")

    with zygote(data) as socket:
        order = sorted(incidents, key=lambda incident: -incident.seconds)
        await asyncio.gather(*(one(incident, socket) for incident in order))
    return failed


async def seed(incident: Incident, folder: Path, socket: Path) -> Window:
    """Perform an incident on a stage of its own, and keep what Prometheus scraped in `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    async with opened(folder, socket, incident.leak_bytes) as stage:
        began_s, ended_s = await perform(stage, incident)
        jobs = sorted((job.namespace, job.name) for job in stage.jobs)
    window = Window(began_s, ended_s, tuple(jobs))
    (folder / WINDOW).write_text(json.dumps({"begin_s": began_s, "end_s": ended_s, "jobs": jobs}) + "\n")
    return window


def draw(folder: Path, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    for name, page in pages(folder):
        shoot(page, out / f"{name}.png")


def pages(folder: Path) -> Iterator[tuple[str, Json]]:
    """Yield the name and the content of each picture of a seeded incident."""
    kept = json.loads((folder / WINDOW).read_text())
    window = Window(kept["begin_s"], kept["end_s"], tuple(map(tuple, kept["jobs"])))
    with serving(folder / "prometheus") as prometheus:
        for uid, dashboard in asking.dashboards().items():
            short = uid.removeprefix("trainmaster-")
            variables: list[tuple[str, dict[str, str]]] = [(short, {})]
            if short == "job":
                variables = [
                    (f"job-{namespace}-{job}", {"namespace": namespace, "job": job}) for namespace, job in window.jobs
                ]
            elif short == "operator":
                variables = [(short, {"namespace": NAMESPACE})]
            for name, chosen in variables:
                page = asked(
                    prometheus,
                    dashboard,
                    chosen,
                    window.begin_s,
                    window.end_s,
                    finest_s=FINEST_S,
                    rate_interval_s=RATE_INTERVAL_S,
                )
                yield name, page


def answers(incidents: Sequence[Incident]) -> str:
    """What a reader of the pictures is to name, as a table."""
    lines = ["| incident | job | cause | next command | where the data are from |", "| --- | --- | --- | --- | --- |"]
    for one in incidents:
        lines.append(f"| {one.number:02} | {one.answer} | {one.cause} | `{one.command}` | {one.how} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
