"""Faults on purpose: `kind:key=value,key=value`, for example `kill:rank=2,step=20`. Standard library only.

Who starts a run parses the faults and gives them to the ranks; a rank reports at each step and, when one is due, asks
over a unix socket whether it may fire: it fires exactly once in the life of the run, although steps are replayed.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import signal
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from trainmaster.contract.wire import environment
from trainmaster.errors import ConfigError, unknown

KINDS = {
    "kill": "SIGKILL to the rank",
    "stop": "SIGSTOP to the rank: it is there, and silent",
    "exit": "the rank exits with a code (code=, default 1)",
    "raise": "an exception in the rank",
    "corrupt-checkpoint": "bytes of the newest complete checkpoint are flipped",
    "kill-pod": "SIGKILL to the agent and all its ranks",
    "kill-operator": "SIGKILL to the operator",
}
KEYS = ("rank", "step", "code")
REPLY_TIMEOUT_S = 30.0

log = logging.getLogger(__name__)


class InjectedFault(RuntimeError):
    """What the fault `raise` raises."""


@dataclass(frozen=True)
class Fault:
    kind: str
    step: int  # inside this step: after the backward pass, before the optimizer
    rank: int = 0
    code: int = 1  # of exit
    id: str = ""

    def __str__(self) -> str:
        code = f",code={self.code}" if self.kind == "exit" else ""
        return f"{self.kind}:rank={self.rank},step={self.step}{code}"


def parse(text: str) -> Fault:
    """The fault that `text` describes. Raises ConfigError in words."""
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise ConfigError(unknown(f"fault {text!r}", kind, KINDS))
    values: dict[str, int] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if key not in KEYS:
            raise ConfigError(unknown(f"fault {text!r}", key, KEYS))
        if key in values:
            raise ConfigError(f"fault {text!r}: {key} is given twice")
        if not equals or not re.fullmatch(r"\d{1,15}", value):
            raise ConfigError(f"fault {text!r}: {key} must be a whole number, as in {key}=3; got {value!r}")
        values[key] = int(value)
    if "step" not in values:
        raise ConfigError(f"fault {text!r}: step is missing, as in {kind}:rank=0,step=20")
    if values["step"] < 1:
        raise ConfigError(f"fault {text!r}: steps are counted from 1")
    if "code" in values and (kind != "exit" or not 1 <= values["code"] <= 255):
        what = "must lie between 1 and 255" if kind == "exit" else f"belongs to exit, not to {kind}"
        raise ConfigError(f"fault {text!r}: code {what}")
    return Fault(kind, step=values["step"], rank=values.get("rank", 0), code=values.get("code", 1))


def encode(faults: Sequence[Fault]) -> str:
    """The faults as the JSON that ranks get, each with an id of its own."""
    return json.dumps([asdict(replace(fault, id=fault.id or f"fault-{i}")) for i, fault in enumerate(faults)])


@functools.lru_cache(maxsize=1)
def decode(raw: str) -> tuple[Fault, ...]:
    return tuple(Fault(**fault) for fault in json.loads(raw))


def at_step(step: int, rank: int | None = None) -> None:
    """Call inside each step, between the backward pass and the optimizer: what is due on this rank happens here.

    `rank` defaults to torchrun's RANK.
    """
    raw = os.environ.get(environment.FAULTS)
    if not raw:
        return
    if rank is None:
        rank = int(os.environ.get("RANK", "0"))
    for fault in decode(raw):
        if fault.step == step and fault.rank == rank and may_fire(fault):
            fire(fault)


def may_fire(fault: Fault) -> bool:
    """Ask who started the run. kill-pod and kill-operator are done by it before it answers."""
    path = os.environ.get(environment.FAULT_SOCKET)
    if not path:
        raise ConfigError(f"{environment.FAULTS} is set without {environment.FAULT_SOCKET}: nobody counts the faults")
    question = {"fire": fault.id, "pod": pod_name(), "rank": fault.rank, "step": fault.step}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(REPLY_TIMEOUT_S)
        try:
            connection.connect(path)
            connection.sendall(json.dumps(question).encode() + b"\n")
            with connection.makefile("rb") as replies:
                reply = replies.readline()
        except OSError as error:
            log.warning("fault %s stays away: nobody answers on %s: %s", fault, path, error)
            return False
    return bool(reply) and json.loads(reply).get("go") is True


def pod_name() -> str:
    """The pod that this process runs in; "" outside of one."""
    parts = (environment.JOB, environment.ROLE, environment.SLOT, environment.INCARNATION)
    values = [os.environ.get(part, "") for part in parts]
    return "-".join(values) if all(values) else ""


def fire(fault: Fault) -> None:
    """Do to this process what the fault says."""
    log.warning("fault %s fires", fault)
    if fault.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault.kind == "exit":
        os._exit(fault.code)
    elif fault.kind == "raise":
        raise InjectedFault(f"fault {fault} was asked for")
    elif fault.kind == "corrupt-checkpoint":
        path = corrupt(os.environ.get(environment.CHECKPOINT_DIR, ""))
        log.warning("flipped bytes of %s", path or "nothing: there is no complete checkpoint yet")


def corrupt(directory: str) -> str | None:
    """Flip bytes in the middle of a shard of the newest complete checkpoint. The file, or None without a checkpoint."""
    complete = []
    for name in os.listdir(directory) if os.path.isdir(directory) else []:
        match = re.fullmatch(r"step-(\d+)\.r(\d+)", name)
        if match and os.path.exists(os.path.join(directory, name, "manifest.json")):
            complete.append((int(match[1]), int(match[2]), name))
    if not complete:
        return None
    folder = os.path.join(directory, max(complete)[2])
    shards = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".safetensors"))
    path = max(shards, key=os.path.getsize)
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        there = file.read(16)
        file.seek(-len(there), os.SEEK_CUR)
        file.write(bytes(byte ^ 0xFF for byte in there))
    return path
