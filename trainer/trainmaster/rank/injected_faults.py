"""Injected faults: `kind:key=value,key=value`, for example `kill:rank=2,step=20`. Standard library only.

The grammar is the same for a run on this machine and for a job on a cluster. The process that starts a run parses the
faults and passes them to the ranks; on a cluster, a pod's agent gets them and writes them to a file for its ranks. A
rank checks at each step whether a fault is due, and then asks over a unix socket whether it may fire: each fault fires
exactly once, although steps are repeated. What a rank cannot do to itself, the other side does before it answers.
"""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from trainmaster.contract.wire import environment
from trainmaster.contract.wire.fault_protocol import ARMED, DISK_FULL, SOCKET, ask
from trainmaster.errors import ConfigError, unknown
from trainmaster.host import own_pod

REPLY_TIMEOUT_S = 30.0

# Seconds after which a rank whose pod was killed must be dead.
DIES_WITHIN_S = 30.0

log = logging.getLogger(__name__)


class InjectedFault(RuntimeError):
    """The exception of the fault `raise`."""


class Kind(NamedTuple):
    """A kind of fault. `keys` are allowed in addition to rank and step.

    `by` says who causes it: the rank itself, an agent, or the process that started the run (on a cluster: the one that
    asks for it).
    """

    what: str
    by: str = "rank"
    keys: tuple[str, ...] = ()


KINDS = {
    "kill": Kind("SIGKILL to the rank"),
    "stop": Kind("SIGSTOP to the rank: its process exists but does nothing"),
    "slow": Kind("the rank sleeps `seconds` in each of `steps` steps", keys=("seconds", "steps")),
    "exit": Kind("the rank exits with a code", keys=("code",)),
    "raise": Kind("an exception in the rank"),
    "nan": Kind("NaN in the rank's gradients, or in its weights where a script owns the step"),
    "oom": Kind(
        "out of memory: `where=device` raises the error of torch, `where=host` allocates host memory until the limit",
        keys=("where",),
    ),
    "corrupt-checkpoint": Kind("bytes of the newest complete checkpoint are flipped", keys=("tier",)),
    "fill-disk": Kind(
        'for `seconds`, writes of checkpoints in the pod fail with "no space left on device"', "agent", ("seconds",)
    ),
    "lose-store": Kind("the store at which the ranks of the current round met is killed", "agent"),
    "partition": Kind("the rank's agent can't reach the operator for `seconds`", "agent", ("seconds",)),
    "kill-agent": Kind("SIGKILL to the rank's agent alone", "agent"),
    "kill-pod": Kind("SIGKILL to the agent and all its ranks", "starter"),
    "lose-node": Kind("the rank's pod is killed, and its node stops reporting", "starter"),
    "kill-operator": Kind("SIGKILL to the operator", "starter"),
    "crash-operator": Kind(
        "SIGKILL to the operator after `writes` more of its writes to the API server", "starter", ("writes",)
    ),
    "api-outage": Kind("the API server refuses the operator for `seconds`", "starter", ("seconds",)),
}

_WHOLE = {"rank": 0, "step": 0, "code": 1, "steps": 10, "writes": 1}
_SECONDS = {"slow": 0.5, "fill-disk": 10.0, "partition": 10.0, "api-outage": 10.0}
WORDS = {"where": ("device", "host"), "tier": ("storage", "ram")}
"""The words that a key of a fault accepts, if its value is a word."""
_KEYS = (*_WHOLE, "seconds", *WORDS)


@dataclass(frozen=True)
class Fault:
    kind: str
    step: int  # inside this step, or inside the first one that is seen after it. 0: now, or in the next step
    rank: int = 0
    code: int = 1
    seconds: float = 0.0
    steps: int = 10
    writes: int = 1
    where: str = "device"
    tier: str = "storage"
    id: str = ""

    def __str__(self) -> str:
        said = [f"rank={self.rank}", *([f"step={self.step}"] if self.step else [])]
        for key in KINDS[self.kind].keys:
            value = getattr(self, key)
            said.append(f"{key}={value:g}" if key == "seconds" else f"{key}={value}")
        return f"{self.kind}:{','.join(said)}"


def _unknown_kind(text: str, kind: str) -> str:
    """Return a sentence for a kind that does not exist. A kind that affects a single rank has no suffix "-rank"."""
    plain = kind.removesuffix("-rank")
    if plain in KINDS and KINDS[plain].by == "rank":
        return f"fault {text!r}: {kind!r} is unknown; {plain} strikes a rank, for example {plain}:rank=1,step=20"
    return unknown(f"fault {text!r}", kind, KINDS)


def parse(text: str, *, now: bool = False) -> Fault:
    """Return the fault that `text` describes. Raises ConfigError in a sentence.

    With `now`, a fault without a step is meant for now.
    """
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise ConfigError(_unknown_kind(text, kind))
    values: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if key not in _KEYS:
            raise ConfigError(unknown(f"fault {text!r}", key, _KEYS))
        if key in values:
            raise ConfigError(f"fault {text!r}: {key} is given twice")
        if key not in ("rank", "step", *KINDS[kind].keys):
            owners = " and ".join(sorted(name for name, one in KINDS.items() if key in one.keys))
            raise ConfigError(f"fault {text!r}: {key} belongs to {owners}, not to {kind}")
        values[key] = _value(text, key, value if equals else "")
    if "step" not in values and not now:
        raise ConfigError(f"fault {text!r}: step is missing, as in {kind}:rank=0,step=20")
    if values.get("step") == 0:
        raise ConfigError(f"fault {text!r}: steps are counted from 1")
    if not 1 <= values.get("code", 1) <= 255:
        raise ConfigError(f"fault {text!r}: code must lie between 1 and 255")
    for key in ("steps", "writes", "seconds"):
        if values.get(key) == 0:
            raise ConfigError(f"fault {text!r}: {key} must be more than 0")
    return Fault(kind, **{"step": 0, "seconds": _SECONDS.get(kind, 0.0), **values})


def _value(text: str, key: str, value: str) -> int | float | str:
    if key in _WHOLE:
        if not re.fullmatch(r"\d{1,15}", value):
            raise ConfigError(f"fault {text!r}: {key} must be a whole number, as in {key}=3; got {value!r}")
        return int(value)
    if key == "seconds":
        if not re.fullmatch(r"\d{1,6}(\.\d{1,3})?", value):
            raise ConfigError(f"fault {text!r}: seconds must be a number, as in seconds=2.5; got {value!r}")
        return float(value)
    if value not in WORDS[key]:
        raise ConfigError(f"fault {text!r}: {key} must be {' or '.join(WORDS[key])}; got {value!r}")
    return value


def encode(faults: Sequence[Fault]) -> str:
    """Return the faults as the JSON that ranks get, each with an id of its own."""
    return json.dumps([asdict(replace(fault, id=fault.id or f"fault-{i}")) for i, fault in enumerate(faults)])


@functools.lru_cache(maxsize=1)
def decode(raw: str) -> tuple[Fault, ...]:
    return tuple(Fault(**fault) for fault in json.loads(raw))


def at_step(
    step: int,
    rank: int | None = None,
    numbers: Callable[[], Iterable[Any]] | None = None,
    *,
    after: int | None = None,
) -> None:
    """Call inside each step, between the backward pass and the optimizer: what is due on this rank happens here.

    `rank` defaults to torchrun's RANK. `numbers`: tensors that become NaN when that is asked for. `after`: the last
    step that was seen before this one. Where only some steps are seen, as in a script that reports every 20th step, a
    fault of a step between the two is due. Default, and if it is not known (-1) or not below `step`: the step before.
    """
    _slowness.endure(step)
    raw = os.environ.get(environment.FAULTS) or _armed()
    if not raw:
        return
    if rank is None:
        rank = int(os.environ.get("RANK", "0"))
    last = after if after is not None and 0 <= after < step else step - 1
    for fault in decode(raw):
        due = not fault.step or last < fault.step <= step
        if due and fault.rank == rank and may_fire(fault, step, last):
            fire(fault, step, numbers)


def _armed() -> str:
    """Return the faults that this pod's agent was asked for while its ranks run. Nearly always "", after one look."""
    folder = os.environ.get(environment.FAULT_DIR)
    if not folder or not os.path.exists(path := os.path.join(folder, ARMED)):
        return ""
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def may_fire(fault: Fault, step: int, last: int) -> bool:
    """Ask the process that counts the faults, which started the run, or this pod's agent. Return its answer.

    `step`: the step that the rank is in. `last`: the last one before it that was seen.
    """
    path = os.environ.get(environment.FAULT_SOCKET)
    if not path and (folder := os.environ.get(environment.FAULT_DIR)):
        path = os.path.join(folder, SOCKET)
    if not path:
        raise ConfigError(
            f"{environment.FAULTS} is set without {environment.FAULT_SOCKET}: no process counts the faults"
        )
    question = {"fire": fault.id, "pod": own_pod.name(), "rank": fault.rank, "step": step, "after": last}
    try:
        reply = ask(path, question, REPLY_TIMEOUT_S)
    except OSError as error:
        log.warning("fault %s does not fire: no process answers on %s: %s", fault, path, error)
        return False
    return reply.get("go") is True


def fire(fault: Fault, step: int = 0, numbers: Callable[[], Iterable[Any]] | None = None) -> None:
    """Cause the fault in this process."""
    log.warning("fault %s fires", fault)
    if fault.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault.kind == "slow":
        _slowness.begin(step or fault.step, fault)
    elif fault.kind == "exit":
        os._exit(fault.code)
    elif fault.kind == "raise":
        raise InjectedFault(f"fault {fault} was asked for")
    elif fault.kind == "nan":
        for tensor in numbers() if numbers is not None else ():
            tensor.fill_(float("nan"))
    elif fault.kind == "oom":
        run_out_of_memory(fault.where)
    elif fault.kind == "corrupt-checkpoint":
        place = environment.RAM_DIR if fault.tier == "ram" else environment.CHECKPOINT_DIR
        path = corrupt(os.environ.get(place, ""), fault.tier)
        log.warning("flipped bytes of %s", path or "nothing: there is no complete checkpoint yet")
    elif fault.kind == "kill-pod":
        # The agent is dead, and its ranks are about to be: this one takes no part in its step any more.
        time.sleep(DIES_WITHIN_S)
        raise InjectedFault(f"fault {fault}: this rank lives {DIES_WITHIN_S:g} s after its pod was killed")


class Slowness:
    """The slowness of a rank, which lasts for a number of steps, or until the rank ends."""

    def __init__(self) -> None:
        self._until, self._seconds = 0, 0.0

    def begin(self, step: int, fault: Fault) -> None:
        self._until, self._seconds = step + fault.steps, fault.seconds
        self.endure(step)

    def endure(self, step: int) -> None:
        if step < self._until:
            time.sleep(self._seconds)


_slowness = Slowness()


def gradients(parameters: Iterable[Any]) -> Iterable[Any]:
    return (parameter.grad for parameter in parameters if parameter.grad is not None)


def run_out_of_memory(where: str) -> None:
    """Exhaust memory, or raise the error of a device that is out of memory.

    For a device, raise what torch raises, and name the device of this process. For the host: in a container, the kernel
    ends this process at the limit; on a machine that others use, too, set a limit first, so that MemoryError is raised.
    """
    if where == "device":
        import torch

        device = "CUDA" if torch.cuda.is_initialized() else "CPU"
        raise torch.OutOfMemoryError(f"{device} out of memory. A fault was asked for")
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        import resource

        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), hard))
    taken = []
    while True:
        taken.append(b"\1" * (16 << 20))


def full_disk() -> None:
    """Raise OSError as a full disk does, while that fault lasts. The disk is not filled, because others may write to
    it."""
    folder = os.environ.get(environment.FAULT_DIR)
    if folder and os.path.exists(os.path.join(folder, DISK_FULL)):
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (a fault was asked for)")


def corrupt(directory: str, tier: str = "storage") -> str | None:
    """Flip bytes in the middle of a shard of the newest complete checkpoint. Return the file, or None without a
    checkpoint.

    In memory there are no manifests; a file with a receipt is complete.
    """
    complete = []
    for name in os.listdir(directory) if os.path.isdir(directory) else []:
        match = re.fullmatch(r"step-(\d+)\.r(\d+)", name)
        if match and (tier == "ram" or os.path.exists(os.path.join(directory, name, "manifest.json"))):
            complete.append((int(match[1]), int(match[2]), name))
    for _, _, name in sorted(complete, reverse=True):
        folder = os.path.join(directory, name)
        shards = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".safetensors"))
        if not shards:
            continue
        path = max(shards, key=os.path.getsize)
        with open(path, "r+b") as file:
            file.seek(os.path.getsize(path) // 2)
            there = file.read(16)
            file.seek(-len(there), os.SEEK_CUR)
            file.write(bytes(byte ^ 0xFF for byte in there))
        return path
    return None
