"""A schedule: a job, what goes wrong with it and when. The same schedule is the same run, in each process."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from simulation.faults.random_faults import KINDS, ON_A_GROWING_CLUSTER, Fault, edits, refusals, schedule
from simulation.virtual.autoscaler import Growth
from simulation.virtual.virtual_world import Workload

FORMAT = 1
TIGHT: dict[str, Any] = {"inPlace": 2, "pod": 1, "full": 1, "perCause": 2}


class BadSchedule(Exception):
    """A file that no schedule can be read from."""


_TYPES: dict[object, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}

Part = TypeVar("Part", Workload, Growth, Fault)


def _made(kind: type[Part], values: dict[str, Any]) -> Part:
    """A part of a schedule with these values. Raises BadSchedule for a value of a wrong type, TypeError for others."""
    for part in fields(kind):
        known = _TYPES.get(part.type)
        if known and part.name in values and type(values[part.name]) not in known:
            raise BadSchedule(f"{part.name} is {json.dumps(values[part.name])}: {part.type} is expected")
    return kind(**values)


@dataclass(frozen=True)
class Schedule:
    """`seed` seeds all chance in the world beside the faults; "": the name does."""

    name: str
    workload: Workload = field(default_factory=Workload)
    faults: tuple[Fault, ...] = ()
    may_fail: bool = False  # its budget is so small that it may be spent
    seed: str = ""

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
        faults += refusals(random.Random(f"{seed}/refusals"), workload.steps)
        return cls(f"seed {seed}", workload, tuple(faults), may_fail=tight)

    @classmethod
    def of_growing_seed(cls, seed: int) -> Schedule:
        """A job on a cluster that has too few places for it, and grows."""
        chance = random.Random(f"{seed}/growing")
        replicas = chance.choice((2, 3, 4))
        vain = chance.random() < 0.2  # no order brings anything: only the other job's end makes places
        rival = chance.randrange(1, replicas) if vain or chance.random() < 0.3 else 0
        gated_s = chance.choice((0.0, 0.0, 0.0, 700.0))
        growth = Growth(
            nodes=replicas if vain else chance.randrange(0, replicas + 1) if not rival else replicas,
            fails=1.0 if vain else chance.choice((0.0, 0.0, 0.3, 0.6)),
            rival=rival,
            release_s=chance.choice((900, 900, 900, 120)),
            gated_s=gated_s,
            pending_s=600 if gated_s and not rival and not vain and chance.random() < 0.5 else None,
            may_taint=chance.random() < 0.4,
            may_list=chance.random() < 0.4,
        )
        if growth.pending_s is not None:
            growth = replace(growth, nodes=2 * replicas, fails=0.0)  # once its gates are gone, it starts at once
        workload = Workload(
            replicas=replicas,
            steps=8,
            save_every=3,
            script=chance.random() < 0.3,
            takeover=chance.random() < 0.7,
            growth=growth,
        )
        faults = schedule(random.Random(f"{seed}/growing faults"), workload.steps, ON_A_GROWING_CLUSTER)
        return cls(f"growing seed {seed}", workload, tuple(faults))

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
            if growth := workload.get("growth"):
                workload["growth"] = _made(Growth, {**growth, "late_s": tuple(growth["late_s"])})
            faults = tuple(_made(Fault, fault) for fault in value["faults"])
            unknown = sorted({fault.kind for fault in faults} - set(KINDS))
            if unknown:
                raise BadSchedule(f"no fault is called {unknown[0]}; there are {', '.join(sorted(KINDS))}")
            return cls(
                value["name"], _made(Workload, workload), faults, bool(value["may_fail"]), str(value.get("seed", ""))
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadSchedule(f"this is not a schedule: {type(error).__name__}: {error}") from None
