"""A schedule: a job, what goes wrong with it and when. The same schedule is the same run, in each process."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field
from typing import Any

from simulation.faults.random_faults import KINDS, Fault, edits, schedule
from simulation.virtual.virtual_world import Workload

FORMAT = 1
TIGHT: dict[str, Any] = {"inPlace": 2, "pod": 1, "full": 1, "perCause": 2}


class BadSchedule(Exception):
    """A file that no schedule can be read from."""


@dataclass(frozen=True)
class Schedule:
    """`name` seeds all chance in the world beside the faults."""

    name: str
    workload: Workload = field(default_factory=Workload)
    faults: tuple[Fault, ...] = ()
    may_fail: bool = False  # its budget is so small that it may be spent

    @classmethod
    def of_seed(cls, seed: int) -> Schedule:
        """The shape of the job belongs to the seed too."""
        chance = random.Random(f"{seed}/shape")
        shape: dict[str, Any] = {
            "replicas": chance.choice((1, 2, 3, 4)),
            "ranks_per_pod": chance.choice((1, 1, 2)),
            "steps": chance.choice((8, 15, 30)),
            "save_every": chance.choice((3, 5, 10)),
            "takeover": chance.random() < 0.7,
            "script": chance.random() < 0.25,
            "spares": chance.choice((0, 0, 0, 1)),
            "elastic": chance.random() < 0.2,
        }
        tight = chance.random() < 0.15
        if tight:
            shape["budget"] = TIGHT
        workload = Workload(**shape)
        faults = schedule(random.Random(f"{seed}/faults"), workload.steps)
        faults += edits(random.Random(f"{seed}/edits"), workload.steps)
        return cls(f"seed {seed}", workload, tuple(faults), may_fail=tight)

    def to_json(self, **more: object) -> str:
        return json.dumps({"format": FORMAT, **asdict(self), **more}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Ignores what isn't the schedule's. Raises BadSchedule."""
        try:
            value = json.loads(text)
            if value["format"] != FORMAT:
                raise BadSchedule(f"format {value['format']} isn't known here, {FORMAT} is")
            workload = {**value["workload"], "restart_s": tuple(value["workload"]["restart_s"])}
            faults = tuple(Fault(**fault) for fault in value["faults"])
            unknown = sorted({fault.kind for fault in faults} - set(KINDS))
            if unknown:
                raise BadSchedule(f"no fault is called {unknown[0]}; there are {', '.join(sorted(KINDS))}")
            return cls(value["name"], Workload(**workload), faults, bool(value["may_fail"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadSchedule(f"this is not a schedule: {type(error).__name__}: {error}") from None
