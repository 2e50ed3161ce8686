"""The interface of a framework: what its ranks get, how they meet, and how their steps are observed.

Each framework is one file of this folder that makes one `Framework`. Its functions are pure: they get the facts of a
round and return variables. Nothing here imports a framework; hooks get the module that a script has imported.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

Entry = dict[str, Any]
"""What a rank runs, see `trainmaster.rank.script_runner`."""


@dataclass(frozen=True)
class Facts:
    """The place of one rank in a round."""

    rank: int
    world_size: int
    local_rank: int = 0  # on its node
    local_world_size: int = 1
    node: int = 0
    nodes: int = 1
    role: str = "worker"
    store_host: str = "127.0.0.1"  # where the round's store is, in the pod of rank 0
    store_port: int = 0
    restart_count: int = 0
    job_uid: str = ""
    has_accelerator: bool = False  # the pod has the device files of one


class Watch(Protocol):
    """What hooks report about a script. It is ignored in a rank that writes its progress itself."""

    def met(self) -> None:
        """Report that all ranks have found each other."""

    def completed(self, step: int, *, resumed: int = -1) -> None:
        """Report that the host has completed a step, whose number counts the steps of earlier rounds, too.

        `resumed` is the step after which this process began, or -1 if it is not known.
        """

    def one_step(self, owner: Any, count: Callable[[Any], int | None]) -> AbstractContextManager[None]:
        """Return a context in which all steps of torch's optimizers are one step, which `owner` takes with them.

        The step is counted at the end of the context, unless an exception leaves it. `count` returns the number of
        steps that the owner has taken, with those of earlier rounds, or None if it does not know them.
        """

    def building(self) -> None:
        """Report that the script builds or restores its model."""


Hook = Callable[[Any, Watch], None]
"""A function that changes a module, which was imported just now or before."""


@dataclass(frozen=True)
class Meeting:
    """The function, or Class.method, of a module with which the ranks of a framework meet."""

    name: str
    by_default: Callable[[tuple[Any, ...], dict[str, Any]], bool]
    """Returns True if a call with these arguments takes the addresses of the other ranks from the environment."""


@dataclass(frozen=True)
class Profiler:
    """How a rank records its steps with the profiler of its framework, in files that TensorBoard opens.

    The functions are called in the rank, after its script has imported the framework. They may raise any exception: it
    is logged, and the training continues.
    """

    module: str
    """The package that a script imports if it trains with this framework."""

    start: Callable[[str], Any]
    """Starts to record, and returns what `stop` needs. It gets an empty folder."""

    stop: Callable[[Any, str], None]
    """Stops to record, and writes the records into the folder. Names of files may contain the name of the machine."""

    step: Callable[[int], AbstractContextManager[Any]]
    """Returns a context that gives a step its number in the record, in the way that TensorBoard expects."""

    starts: Mapping[str, str] = field(default_factory=dict)
    """The functions by which a script starts the same profiler itself: name of the module -> function or Class.method.
    Only one can record, so the one that was asked for gives way to the script's."""


def _nothing(facts: Facts) -> dict[str, str]:
    return {}


def _nobody(facts: Facts, addresses: Sequence[str]) -> dict[str, str]:
    return {}


@dataclass(frozen=True)
class Framework:
    """One value of `spec.framework`."""

    name: str
    packages: tuple[str, ...]
    """The image must have at least one of these packages. Empty: none is needed."""

    environment: Callable[[Facts], dict[str, str]] = _nothing
    """The variables of a rank that are known before it starts, except those that number it."""

    defaults: Callable[[Facts], dict[str, str]] = _nothing
    """Variables that a rank gets if the job does not set them."""

    peers: Callable[[Facts, Sequence[str]], dict[str, str]] = _nobody
    """Variables made of the addresses of all ranks in their order, host:port each, where `addresses` is true."""

    addresses: bool = False
    """If true, ranks exchange addresses with a free port before their script begins."""

    store: Callable[[socket.socket], None] | None = None
    """Serves the ranks at the listening socket of the round's store, in a process of its own, until that is killed.
    None: the store is the exchange of addresses or, where `addresses` is false, a TCPStore."""

    needs_ipv4: bool = False
    """If true, the ranks of this framework cannot meet at an address of IPv6."""

    entry: Entry | None = None
    """The entry that ranks run. None: the job's command."""

    executed_entry: Entry | None = None
    """The entry of ranks that are executed instead of forked. None: the same."""

    hooks: Mapping[str, Hook] = field(default_factory=dict)
    """The hook of each module, by the name of the module. It is called when a rank has imported the module."""

    meeting: Mapping[str, Meeting] = field(default_factory=dict)
    """How ranks of this framework meet, by the name of a module. In a job of another family it is refused. One
    framework of a family has it for all."""

    family: str = ""
    """Frameworks of one family meet in the same way; "": the framework is alone."""

    unseen: str = ""
    """A sentence for the log if steps are known only when the script reports them; "" if they are observed."""

    profiler: Profiler | None = None
    """The profiler with which ranks record steps. None: there is none, or the trainer has its own."""

    @property
    def kin(self) -> str:
        return self.family or self.name


def wrong_address(framework: Framework, address: str) -> str:
    """Return why the ranks of a framework cannot meet at the address of a pod; "" if they can."""
    if ":" not in address or not framework.needs_ipv4:
        return ""
    return (
        f"framework {framework.name}: its ranks find each other over IPv4 alone, and the address of this pod is "
        f"{address}: use a cluster whose pods have an IPv4 address, as their first one if they have two"
    )


def numbers(facts: Facts) -> dict[str, str]:
    """Return the variables that number a rank, which ranks of every framework get. Their names are torchrun's."""
    return {
        "RANK": str(facts.rank),
        "WORLD_SIZE": str(facts.world_size),
        "LOCAL_RANK": str(facts.local_rank),
        "LOCAL_WORLD_SIZE": str(facts.local_world_size),
        "GROUP_RANK": str(facts.node),
        "GROUP_WORLD_SIZE": str(facts.nodes),
        "ROLE_RANK": str(facts.rank),
        "ROLE_WORLD_SIZE": str(facts.world_size),
        "ROLE_NAME": facts.role,
        "MASTER_ADDR": facts.store_host,
        "MASTER_PORT": str(facts.store_port),
    }


def from_numbers(env: Mapping[str, str]) -> Facts:
    """Return the facts that `numbers` has written. Raises KeyError or ValueError without them."""
    return Facts(
        rank=int(env["RANK"]),
        world_size=int(env["WORLD_SIZE"]),
        local_rank=int(env["LOCAL_RANK"]),
        local_world_size=int(env["LOCAL_WORLD_SIZE"]),
        node=int(env["GROUP_RANK"]),
        nodes=int(env["GROUP_WORLD_SIZE"]),
        role=env["ROLE_NAME"],
        store_host=env["MASTER_ADDR"],
        store_port=int(env["MASTER_PORT"]),
    )
