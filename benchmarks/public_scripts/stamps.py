"""What the steps and deaths of a script say that `injected/sitecustomize.py` has stamped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

INJECTED = Path(__file__).parent / "injected"
PAUSES = "time.sleep"
"""The hook of a script that pauses by itself after each step, for `pace_s` seconds."""


@dataclass(frozen=True)
class Kill:
    """When processes of a script are killed, each with SIGKILL from inside, right after a step of its optimizer.

    victim: the rank that is killed, or None for whichever process comes first. step: the process has taken so many
    steps since it started. times: how many are killed, at most one in each round. settle: seconds since the process's
    first step that must have passed, before the first kill and before later ones.
    """

    victim: int | None
    step: int
    times: int = 1
    settle: tuple[float, float] = (0.0, 0.0)

    def variable(self) -> str:
        victim = "any" if self.victim is None else str(self.victim)
        return f"{victim} {self.step} {self.times} {self.settle[0]} {self.settle[1]}"


class Step(NamedTuple):
    at_ns: int
    pid: int
    rank: int
    attempt: int
    count: int  # from 1, of this process


def variables(folder: Path, kill: Kill | None, pace_s: float, hook: str = "", block: int = 0) -> dict[str, str]:
    """Return the variables of a script whose steps are to be stamped in `folder`. `block`: ranks wait for their turn
    after so many steps; 0: they never do."""
    found = {"SCRIPT_STAMPS": str(folder), "SCRIPT_PACE": str(pace_s), "PYTHONPATH": str(INJECTED)}
    found |= {"SCRIPT_BLOCK": str(block)} if block else {}
    return found | ({"SCRIPT_KILL": kill.variable()} if kill else {}) | ({"SCRIPT_HOOK": hook} if hook else {})


def read_steps(folder: Path, last_bytes: int = 0) -> list[Step]:
    """Return all stamps of steps in the order of time; none if the script took no step. `last_bytes`: only those in so
    many bytes at the end of the file, for a program that looks often."""
    path = folder / "steps"
    if not path.exists():
        return []
    with path.open("rb") as file:
        skipped = max(path.stat().st_size - last_bytes, 0) if last_bytes else 0
        file.seek(skipped)
        lines = file.read().decode().splitlines()
    return sorted(Step(*map(int, line.split())) for line in lines[1 if skipped else 0 :])


def read_deaths(folder: Path) -> list[int]:
    """Return the moments (monotonic ns) at which processes were killed."""
    return sorted(int(path.read_text().split()[0]) for path in folder.glob("death-*"))


def recoveries(steps: list[Step], deaths: list[int]) -> list[float | None]:
    """Return, for each death, the seconds until as many new processes as there were before the first have taken a step.

    None if that never happened, or if the next process was killed before it did. A process is new if its attempt is
    later than the one in which the process died. Under a launcher that does not number its attempts, it is new if it
    had not stepped before the death.
    """
    found: list[float | None] = []
    numbered = any(step.attempt for step in steps)

    def old_processes(death: int) -> set[int]:
        before = [step for step in steps if step.at_ns <= death]
        if not numbered:
            return {step.pid for step in before}
        attempt = max((step.attempt for step in before), default=0)
        return {step.pid for step in steps if step.attempt <= attempt}

    size = len(old_processes(deaths[0])) if deaths else 0
    for number, death in enumerate(deaths):
        until = deaths[number + 1] if number + 1 < len(deaths) else None
        known = old_processes(death)
        firsts: dict[int, int] = {}
        for step in steps:
            if step.at_ns > death and step.pid not in known and (until is None or step.at_ns <= until):
                firsts.setdefault(step.pid, step.at_ns)
        moments = sorted(firsts.values())
        found.append((moments[size - 1] - death) / 1e9 if 0 < size <= len(moments) else None)
    return found
