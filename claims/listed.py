"""The claims of README.md and docs/, each with the command that shows it.

A paragraph that claims something has the names of its claims above it: `<!-- claim: demo -->`. Most claims stand in the
README; those about how the parts work stand on the page that explains them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Samples:
    """Figures of a benchmark: samples of a case and a system in `benchmarks/results/<file>.json`.

    `over`: each divided by the sample of this other system in the same turn, or by its median if there are not as many.
    """

    file: str
    case: str
    system: str
    over: str = ""

    def read(self, clone: Path, said: str) -> tuple[list[float], str]:
        """Return (figures, unit). Raises LookupError if the benchmark has left none."""
        cases = json.loads(self.path(clone).read_text())["cases"]
        own, unit = self._of(self.system, cases)
        if not self.over:
            return own, unit
        other, _ = self._of(self.over, cases)
        if len(other) != len(own):
            other = [sorted(other)[len(other) // 2]] * len(own)
        return [mine / its for mine, its in zip(own, other, strict=True)], "times"

    def path(self, clone: Path) -> Path:
        return clone / "benchmarks" / "results" / f"{self.file}.json"

    def _of(self, system: str, cases: list[dict[str, object]]) -> tuple[list[float], str]:
        for case in cases:
            if (case["case"], case["system"]) == (self.case, system) and case["samples"]:
                return list(case["samples"]), str(case["unit"])  # type: ignore[call-overload]
        raise LookupError(f"{self.file}.json has no samples of {self.case}, {system}")


@dataclass(frozen=True)
class Printed:
    """Figures that the command prints, on each line behind the text `after`. `number`: the form that they have."""

    unit: str
    after: str = ""
    number: str = r"\d+(?:\.\d+)?"

    def read(self, clone: Path, said: str) -> tuple[list[float], str]:
        """Return (figures, unit). Raises LookupError if no number was printed."""
        behind = [line.partition(self.after)[2] if self.after else line for line in said.splitlines()]
        numbers = [float(number) for text in behind for number in re.findall(self.number, text)]
        if not numbers:
            raise LookupError("no number was printed")
        return numbers, self.unit


@dataclass(frozen=True)
class Claim:
    """Something that a page says. It holds if `command` ends with exit code 0, or it has figures to read."""

    name: str
    says: str
    command: str
    figures: tuple[Samples | Printed, ...] = ()
    needs_cluster: bool = False


SET_UP = Claim("set-up", "One command makes all that is needed, in .venv.", "make venv")
"""The first one: all others run in what it has made."""

CLAIMS = (
    SET_UP,
    Claim("size", "How much the set-up takes on disk.", "du -sm .venv | cut -f 1", (Printed("MB"),)),
    Claim("demo", "A rank of four is killed, and nothing is lost.", "make demo"),
    Claim(
        "same-losses",
        "A run whose ranks, pods or operator die or hang has the losses and the state of one that was undisturbed.",
        "python -m pytest -q tests/e2e/test_continuity.py tests/e2e/test_faults.py tests/e2e/test_hangs.py",
    ),
    Claim(
        "prove",
        "A loop of one's own that is killed trains what an undisturbed one does.",
        "trainmaster prove manifests/examples/own-loop.yaml --seed 1 --plain",
    ),
    Claim(
        "own-job",
        "The commands of the README write, check and run a first job, and kill a rank of it.",
        "python -m pytest -q tests/e2e/test_pages.py -k own-job",
    ),
    Claim(
        "resume",
        "Ctrl-C saves a checkpoint, and the same command goes on from there.",
        "python -m pytest -q tests/cli/test_run_processes.py -k asked_to_stop",
    ),
    Claim(
        "unmodified",
        "A script that runs under torchrun runs unmodified, and restarts in place.",
        "python -m pytest -q tests/e2e/test_unmodified_scripts.py",
    ),
    Claim(
        "own-loop",
        "The four lines of `tm` do nothing under plain python.",
        "python examples/own_loop.py --steps 20",
    ),
    Claim("cluster", "The same on Kubernetes: what README and docs show is run there.", "make e2e", needs_cluster=True),
    Claim(
        "rounds",
        "What belongs to an older round is fenced off, on the wire and on the storage, and is an orphan.",
        "python -m pytest -q tests/trainer/test_fence.py tests/trainer/test_lineage.py tests/control",
    ),
    Claim(
        "order",
        "The order of the data is a pure function of seed, position and slot.",
        "python -m pytest -q tests/trainer/test_data_order.py",
    ),
    Claim(
        "nothing-survives",
        "Nothing of a run survives it, whatever ended it.",
        "python -m pytest -q tests/e2e/test_orphans.py tests/cli/test_run_processes.py",
    ),
    Claim("parity", "Every kind of parallelism trains what one process does.", "trainmaster parity"),
    Claim(
        "refused",
        "A field that nothing obeys is refused.",
        "python -m pytest -q tests/api tests/planning -m 'not processes'",
    ),
    Claim(
        "recovery",
        "Seconds from the death of a rank to the next step that all have completed.",
        "python -m benchmarks.recovery --ranks 4 --results runs/claims/recovery.jsonl",
        (
            Printed("s", " trainmaster ", number=r"\d+\.\d{3}"),
            Printed("s under torchrun at its best", " torchrun, store not shared ", number=r"\d+\.\d{3}"),
        ),
    ),
    Claim(
        "goodput",
        "Share of the time that went into steps which count, with a fault every hundred steps.",
        "python -m benchmarks.goodput --steps 200 --rates 100 --seeds 1 --results runs/claims/goodput.jsonl",
        tuple(
            Printed(f"under {system}", f"{system} ", number=r"(?<=goodput )\d\.\d+")
            for system in ("Trainmaster", "torchrun", "shell loop")
        ),
    ),
    Claim(
        "overhead",
        "Our tokens/s over those of a minimal loop.",
        "python -m benchmarks.overhead --pairs 12",
        (
            Samples("overhead", "replicate", "trainmaster", over="minimal"),
            Samples("overhead", "shard", "trainmaster", over="minimal"),
        ),
    ),
    Claim(
        "memory",
        "Tokens/s with a save to memory in every step, over those without.",
        "python -m benchmarks.overhead --pairs 12 --cases memory",
        (Samples("overhead-memory", "memory", "saved to memory at each step", over="trainmaster"),),
    ),
)
