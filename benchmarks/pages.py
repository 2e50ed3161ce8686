"""Tables for people, from the results that are committed.

    python -m benchmarks.pages [--check] docs/measured.md docs/goodput.md docs/scripts.md docs/frameworks/README.md …

docs/measured.md is made as a whole. Of other pages only what stands between `<!-- benchmarks.pages: NAME -->` and
`<!-- end -->` is.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import cuda_page, framework_recovery, goodput_page, recovery_page, script_recovery, titan_speed
from benchmarks.markdown import fill, machine, spread, table, wrapped
from benchmarks.outages import A_STEP
from benchmarks.public_scripts import page as public_scripts
from benchmarks.record import Case, load
from benchmarks.trainer import CANNOT, OURS, ratios_of
from benchmarks.turns import lower_bound

HEAD = """# Measured

`python -m benchmarks.pages docs/measured.md` makes these tables from the samples in `benchmarks/results/`.
"""

ABOUT_MEMORY = """## Memory of a rank

Four ranks train a GPT of 6.4 million parameters, with 16 sequences of 256 tokens in a step (`python -m
benchmarks.memory`). The table has the memory of the rank that needs most, in MiB, as torch's tracker of storages counts
it. The first four columns are what exists when the gradients are complete. *Activations* are what forward passes keep
for backward passes. *Peak* is the largest sum at any moment of a step, when parameters and gradients of a block may be
whole. With offload, what is in the first three columns is on the host and not part of the peak, except for gradients on
their way to the host. `trainmaster plan` estimates the same for any model.
"""


def link() -> Iterator[str]:
    """Two replicas over a slow link."""
    facts, cases = load("link")
    yield "## Compressed gradients and islands on a slow link"
    yield ""
    yield "Two replicas of a GPT of 3.3 million parameters, 256 tokens each in a step, in two network namespaces whose"
    yield f"link `tc` slows down (`python -m benchmarks.link`). Medians; for islands, means. {machine(facts)}"
    yield ""
    by = {(case.case, case.system): case for case in cases}
    rates = [case.case.removeprefix("a step, ") for case in cases if case.case.startswith("a step, ")]
    rows = []
    systems = [case.system for case in cases if case.case == f"a step, {rates[0]}"]
    for rate in dict.fromkeys(rates):
        whole = by[f"a step, {rate}", systems[0]].median
        for system in systems:
            seconds, sent = by[f"a step, {rate}", system].median, by[f"sent in a step, {rate}", system].median
            rows.append(
                [rate, system, f"{sent / 1e6:.3g} MB", f"{seconds * 1000:.0f} ms", f"{whole / seconds:.1f} x as fast"]
            )
    yield from table(["link", "gradients", "a rank sends in a step", "a step", ""], rows)


def lossy() -> Iterator[str]:
    """What isn't exact, at the end of the demo."""
    facts, cases = load("lossy")
    exact, *others = cases
    yield "## What techniques that aren't exact do to the loss"
    yield ""
    yield f"The demo's model, text and {facts['steps']} steps over two replicas, {len(exact.samples)} seeds"
    yield "(`python -m benchmarks.lossy`). The loss is the mean of the last ten steps, in nats per byte; the table has"
    yield "its median over the seeds, and the worst ratio to the exact run of the same seed."
    yield ""
    rows = [[exact.system, f"{exact.median:.4f}", ""]]
    for case in others:
        worst = max(case.over(exact))
        rows.append([case.system, f"{case.median:.4f}", f"{worst:.4f}"])
    yield from table(["technique", "loss", "worst ratio to the exact run"], rows)


def memory() -> Iterator[str]:
    """What techniques that save memory save."""
    _, cases = load("memory")
    yield ABOUT_MEMORY
    kinds = ["parameters", "gradients", "optimizer", "compression", "activations", "peak"]
    by = {(case.case, case.system): max(case.samples) / 2**20 for case in cases}
    systems = dict.fromkeys(case.system for case in cases)
    first = by["peak", next(iter(systems))]
    rows = [[name, *(f"{by[kind, name]:.1f}" for kind in kinds), f"{by['peak', name] / first:.0%}"] for name in systems]
    yield from table(["technique", *kinds, "of the first row's peak"], rows)


def waits() -> Iterator[str]:
    """What a step waits for."""
    facts, cases = load("waits")
    yield "## What a step waits for"
    yield ""
    yield "One rank that computes with one thread (`python -m benchmarks.waits`): the time for data as a share of a"
    yield "step, and how long a save blocks the loop. The copy of a save continues in another thread during the next"
    yield f"step, so the step after a save is slower. The figures are medians. {machine(facts)}"
    yield ""
    data = [case for case in cases if case.case.startswith("data")]
    yield from table(
        ["data from", "of a step", "at most"], [[c.system, f"{c.median:.2%}", f"{max(c.samples):.2%}"] for c in data]
    )
    yield ""
    by = {(case.case, case.system): case for case in cases}
    rows = []
    for system in dict.fromkeys(case.system for case in cases if case.case == "waiting for a save"):
        kinds = ("waiting for a save", "a step, no save before it", "a step behind a save")
        save, step, behind = (by[kind, system].median for kind in kinds)
        rows.append([system, f"{save * 1e3:.1f} ms", f"{step:.3f} s", f"{save / step:.1%}", f"{behind:.3f} s"])
    yield from table(
        ["state", "a save blocks the loop for", "a step", "share of a step", "the step after a save"], rows
    )


def trainer() -> Iterator[str]:
    """The same training, by others."""
    facts, cases = load("trainer")
    yield "## Training, compared with other systems"
    yield ""
    yield "The same GPT, weights, samples, batch, AdamW and clipping over two ranks on CPU (`make bench-trainer`;"
    yield "[what is compared, and how](trainer-speed.md)). The last columns have our tokens/s divided by those of each"
    yield f"other system: the mean of {facts['starts']} starts, and in brackets the lower end of its one-sided 95 %"
    yield f"interval. {machine(facts)}"
    versions = ", ".join(f"{name} {facts[name]}" for name in ("accelerate", "deepspeed") if name in facts)
    if versions:
        yield f"Versions: {versions}."
    yield ""
    by = {(case.case, case.system): case for case in cases if case.unit == "tokens/s"}
    others = [*dict.fromkeys(system for _, system in by if system != OURS)]
    rows = []
    for row in dict.fromkeys(row for row, _ in by):
        ours, cells = by[row, OURS], []
        for other in others:
            if (row, other) in by:
                ratios = ratios_of(ours, by[row, other], facts["starts"])
                cells.append(f"{statistics.geometric_mean(ratios):.3f} ({lower_bound(ratios):.3f})")
            else:
                cells.append("it can't" if (row, other) in CANNOT else "not run")
        rows.append([f"`{row}`", f"{ours.median:,.0f}", *cells])
    yield from table(["row", "our tokens/s", *(f"/ {other}" for other in others)], rows)


def interruptions() -> Iterator[str]:
    """How long training stands still, whatever interrupts it."""
    yield "## What interrupts training, and for how long"
    yield ""
    yield "These runs train our own loop with small steps on two cores, which all ranks and the operator share."
    yield "*Training stands still* is the time from the last step before the interruption to the first step after it."
    yield "*Until it trains again* begins when a pod is deleted, a node is lost, or a new size is requested: ranks that"
    yield "are told to stop continue to train until they have agreed on a step. The times are medians, with the longest"
    yield "time in brackets."
    yield ""
    places = {"cluster-spares": "a cluster", "resize": "one machine", "outages": "one machine"}
    machines = []
    rows = []
    cut: list[float] = []
    later = ", until it trains again"
    for name, where in places.items():
        facts, cases = load(name)
        machines.append(machine(facts))
        by = {case.case: case for case in cases}
        for case in cases:
            if case.case.startswith(A_STEP):
                cut += case.samples
            elif ", phase " not in case.case and not case.case.endswith(later):
                until = by.get(case.case + later)
                rows.append([where, case.case, _spread(case), _spread(until) if until else "", str(len(case.samples))])
    yield from table(["on", "", "training stands still", "until it trains again", "times"], rows)
    yield ""
    yield "(`make bench-cluster`, `python -m benchmarks.resize`, `python -m benchmarks.outages`.) Without a spare a new"
    yield "pod has to start, and to import torch. If a rank is killed, the time includes the step that was cut"
    yield f"short, {statistics.median(cut):.3f} s. {' '.join(dict.fromkeys(machines))}"


def beside_jobset() -> Iterator[str]:
    """How long a killed rank costs on a cluster, and under JobSet there."""
    facts, cases = load("jobset")
    yield "## From a rank's death to the next step, on a cluster"
    yield ""
    yield "The same script, image and cluster, whose nodes share one machine: from the death of a rank's process to the"
    yield "first step that all ranks have completed after it (`python -m benchmarks.jobset`)."
    yield "Trainmaster starts processes again in their pods, JobSet starts all pods again. The times are medians, with"
    yield f"the range in brackets and the number of recoveries. JobSet {facts['image'].rpartition(':v')[2]}."
    yield f"{machine(facts)}"
    yield ""
    ours, other = cases
    ratio = f"{other.median / ours.median:.0f}"
    yield from table(
        ["", "Trainmaster", "JobSet", "ratio of the medians"],
        [[ours.case, *(spread(case.samples, "not run") for case in cases), ratio]],
    )


def lost_node() -> Iterator[str]:
    """How long a job stands still when one of its nodes is lost and it has no spare pod."""
    facts, cases = load("cluster-lost-node")
    yield "## A lost node, without a spare"
    yield ""
    yield "A script trains in two pods, on a cluster whose three nodes share one machine. The table has the time from"
    yield "the moment at which a node stops, as if its plug were pulled, to the next step that both ranks have"
    yield "completed (`python -m benchmarks.cluster_lost_node`, and with `--lose-leader`). This cluster considers a"
    yield "node lost after 10 s without a message from it; by default Kubernetes waits for 50 s. The object of the"
    yield "lost pod is removed when its ranks are certainly dead: 20 s after an operator last answered the agent. If"
    yield "the leading operator is lost too, the next leader cannot know when that was, and counts from its own start."
    yield "The new pod starts during this time. The times are medians, with the range in brackets and the number of"
    yield "samples."
    yield machine(facts)
    yield ""
    kinds = [[c for c in cases if (" with the leader" in c.case) is with_leader] for with_leader in (False, True)]
    names = ["from the plug to the next step", "of that, once the cluster knows"]
    names += [case.case.rpartition(", phase ")[2] for case in kinds[0][2:]]
    rows = [
        [name, *(spread(case.samples, "not run") for case in of_a_row)]
        for name, *of_a_row in zip(names, *kinds, strict=True)
    ]
    yield from table(["", "another operator leads", "the leader is lost too"], [*rows[2:], *rows[:2]])


def tiers() -> Iterator[str]:
    """Where a lost shard comes from."""
    facts, cases = load("tiers")
    yield "## Where a lost shard comes from"
    yield ""
    yield "The time from a rank's death to the first step that all ranks have completed after it, for a model that is"
    yield "sharded over pods, by the size of the whole state (`make bench-tiers`). The times are medians, with the"
    yield "longest in brackets, and how much of the time was needed to load the state;"
    yield "the rest is the start of a process (of a pod, with its imports) and the first step, which grows with the"
    yield "model too."
    yield machine(facts)
    yield ""
    times = [case for case in cases if ", phase " not in case.case and not case.case.endswith(", lost")]
    systems = [*dict.fromkeys(case.system for case in times)]
    by = {(case.case, case.system): case for case in cases}
    rows = [
        [size, *(f"{_spread(by[size, s])}, loading {by[f'{size}, phase load', s].median:.2f} s" for s in systems)]
        for size in dict.fromkeys(case.case for case in times)
    ]
    yield from table(["state", *systems], rows)


def pinning() -> Iterator[str]:
    """Ranks on cores of their own."""
    facts, cases = load("pinning")
    yield "## Ranks on cores of their own"
    yield ""
    yield "A small GPT over two ranks of one thread each, on as many cores (`make bench-pinning`): runs with ranks that"
    yield "are pinned take turns with runs whose ranks the kernel may move. The figures are medians of a step, and"
    yield f"the ratio with the lower end of its one-sided 95 % interval. {machine(facts)}"
    yield ""
    rows = []
    for default, pinned in zip(cases[::2], cases[1::2], strict=True):
        rows.append([default.case.removesuffix(", step"), _ms(default), _ms(pinned), _ratio(default, pinned)])
    yield from table(["layout", "a step, not pinned", "pinned", "as fast"], rows)


def _ms(case: Case) -> str:
    return f"{case.median * 1e3:.1f} ms"


def _ratio(above: Case, below: Case) -> str:
    ratios = above.over(below)
    return f"{statistics.median(ratios):.3f} ({lower_bound(ratios):.3f})"


def _spread(case: Case) -> str:
    return f"{case.median:.2f} s ({max(case.samples):.2f})"


def torn_reads() -> Iterator[str]:
    """What readers of a rank's record get, and what that costs."""
    facts, cases = load("torn-reads")
    yield "## The record between a rank and its agent"
    yield ""
    yield "One process writes records at full speed, another one reads them; then writers are killed at random moments"
    yield "(`python -m benchmarks.torn_reads`). The table has the number of records that were read while they were only"
    yield f"half written (torn), and medians of the times. {machine(facts)}"
    yield ""
    by = {(case.case, case.system): case for case in cases}
    rows = []
    for half, system in dict.fromkeys((case.case.partition(", ")[0], case.system) for case in cases):
        one = {name: by[f"{half}, {name}", system] for name in ("reads", "torn", "kills", "torn after a kill")}
        count = {name: f"{case.samples[0]:,.0f}" for name, case in one.items()}
        write, both, again = (
            by[f"{half}, {name}", system].median for name in ("a write", "a write and a read", "a read of the same")
        )
        times = [f"{seconds * 1e6:.1f} us" for seconds in (write, both - write, again)]
        torn = [f"{count['torn']} of {count['reads']}", f"{count['torn after a kill']} of {count['kills']}"]
        rows.append([half, system, *torn, *times])
    times_of = ["a write", "a read of a new record", "of the same again"]
    yield from table(["half", "written by", "torn reads", "after a kill", *times_of], rows)


def scrape() -> Iterator[str]:
    """What a scrape of the operator costs."""
    facts, cases = load("scrape")
    yield "## A scrape of the operator"
    yield ""
    yield from wrapped(
        "Jobs of which one in ten runs (`python -m benchmarks.scrape`): series, size, and the CPU time to write the "
        "text for the first time, and again when one job in ten has changed. In between, agents report. The figures "
        f"are medians. {machine(facts)} Before the run, other work kept {facts['busy_cores_before']:.1f} of its cores "
        "busy."
    )
    yield ""
    by = {case.case: case for case in cases}
    rows = []
    for jobs in dict.fromkeys(case.case.partition(" jobs, ")[0] for case in cases):
        one = {name: by[f"{jobs} jobs, {name}"].median for name in ("series", "bytes", "bytes compressed")}
        first, later = (by[f"{jobs} jobs, {which} scrape"].median for which in ("first", "later"))
        sizes = [f"{one[name] / 1e6:.3g} MB" for name in ("bytes", "bytes compressed")]
        rows.append([f"{int(jobs):,}", f"{one['series']:,.0f}", *sizes, f"{first:.3f} s", f"{later:.3f} s"])
    yield from table(["jobs", "series", "text", "compressed", "first scrape", "later"], rows)
    operators = [case for case in cases if ", operator " in case.case]
    if not operators:
        return
    yield ""
    yield "The CPU time of a whole operator that leads these jobs, for each later scrape, with the metrics of single"
    yield "jobs and without them (`metrics.jobs=false`), and as a share of one core if it is scraped every 30 seconds."
    yield ""
    rows = []
    for jobs in dict.fromkeys(case.case.partition(" jobs, ")[0] for case in operators):
        both = [by[f"{jobs} jobs, operator {how} metrics of jobs"].median for how in ("with", "without")]
        shares = [f"{100 * seconds / SCRAPED_EVERY_S:.2f} %" for seconds in both]
        rows.append([f"{int(jobs):,}", *(f"{1000 * seconds:.1f} ms" for seconds in both), *shares])
    yield from table(["jobs", "with", "without", "with, of a core", "without, of a core"], rows)


SCRAPED_EVERY_S = 30.0

SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "trainer": trainer,
    "recovery": recovery_page.section,
    "beside_jobset": beside_jobset,
    "interruptions": interruptions,
    "lost_node": lost_node,
    "tiers": tiers,
    "memory": memory,
    "link": link,
    "lossy": lossy,
    "waits": waits,
    "pinning": pinning,
    "torn_reads": torn_reads,
    "scrape": scrape,
}


BLOCKS: dict[str, Callable[[], Iterator[str]]] = {
    "goodput": goodput_page.tables,
    "goodput-in-short": goodput_page.headline,
    "goodput-with-most-faults": goodput_page.readme,
    "recovery": recovery_page.readme,
    "public-scripts": public_scripts.section,
    "script-recovery": script_recovery.section,
    "titan-speed": titan_speed.section,
    "framework-recovery": framework_recovery.section,
    "cuda": cuda_page.block,
}
WHOLE = "measured.md"


def page() -> str:
    sections = ["\n".join(section()) for section in SECTIONS.values()]
    return "\n".join([HEAD, *(f"{section}\n" for section in sections)])


def made(path: Path) -> str:
    """Return what a page should be. Raises ValueError if there is nothing in it to make."""
    return page() if path.name == WHOLE else fill(path.read_text(), BLOCKS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.pages", description="Tables from the results that are committed.")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a file is stale")
    given = parser.parse_args(arguments)
    stale = []
    for path in given.files:
        if path.name != WHOLE and not path.is_file():
            parser.error(f"{path}: there is no such page")
        try:
            text = made(path)
        except ValueError as error:
            parser.error(f"{path}: {error}")
        if not given.check:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            stale.append(path)
    for path in stale:
        sys.stderr.write(f"{path} is stale: python -m benchmarks.pages {path}\n")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
