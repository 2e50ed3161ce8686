"""The part of joining a round that depends on the framework, and the refusal of a second framework, in a rank."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from trainmaster.agent.frameworks import ALL, Framework, find, rank_addresses
from trainmaster.agent.frameworks.framework import Meeting, Watch, from_numbers
from trainmaster.contract.launch.framework_packages import PACKAGES
from trainmaster.contract.wire import environment
from trainmaster.rank import failure_message

_TRAINING = frozenset({"torch", *PACKAGES.values()})

Loaded = Callable[[Any], None]
"""A function that is called with a module that was imported."""


def of_this_rank() -> Framework | None:
    """Return the framework of this process's job; None if it is no rank."""
    if environment.STORE not in os.environ:
        return None
    return find(os.environ.get(environment.FRAMEWORK, "Trainmaster"))


def trains() -> bool:
    """Return True if this process has imported a framework, and so is not just a wrapper of a program that trains."""
    return not _TRAINING.isdisjoint(sys.modules)


def join(framework: Framework) -> None:
    """Get the addresses of all ranks, and set the variables that the framework derives from them in this process.

    It does nothing for a framework that needs none. Raises OSError if the round's store is lost.
    """
    if not framework.addresses:
        return
    # A shell script may have exported a MASTER_PORT or a WORLD_SIZE of its own.
    numbers: dict[str, str] = json.loads(os.environ.get(environment.NUMBERS) or "{}")
    env = {**os.environ, **numbers}
    facts, own = from_numbers(env), rank_addresses.own_address(env)
    addresses = rank_addresses.exchange(facts, own) if facts.world_size > 1 else [own]
    os.environ.update(framework.peers(facts, addresses))


def hooks(framework: Framework, watch: Watch) -> Iterator[tuple[str, Loaded]]:
    """Yield (name of a module, what to do once this process has imported it) for a rank of this framework."""
    for name, hook in framework.hooks.items():
        yield name, functools.partial(_call, hook, watch)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return
    for other in ALL:
        if other.kin == framework.kin:
            continue
        for name, meeting in other.meeting.items():
            yield name, functools.partial(_refuse_meeting, framework=framework, other=other, meeting=meeting)


def _call(hook: Callable[[Any, Watch], None], watch: Watch, module: Any) -> None:
    hook(module, watch)


def _refuse_meeting(module: Any, framework: Framework, other: Framework, meeting: Meeting) -> None:
    """Let a function with which ranks of another framework would meet end this rank with a sentence."""
    *above, last = meeting.name.split(".")
    owner = functools.reduce(getattr, above, module)
    original = getattr(owner, last)

    @functools.wraps(original)
    def meet(*args: Any, **given: Any) -> Any:
        if meeting.by_default(args, given):
            _end(f"{module.__name__}.{meeting.name.removesuffix('.__init__')}()", framework, other)
        return original(*args, **given)

    setattr(owner, last, meet)
    # Packages have the function under their own name as well.
    for package in [*sys.modules.values()] if not above else []:
        if getattr(package, "__name__", "").partition(".")[0] == module.__name__.partition(".")[0]:
            for name in [name for name, value in vars(package).items() if value is original]:
                setattr(package, name, meet)


def _end(call: str, framework: Framework, other: Framework) -> NoReturn:
    words = (
        f"this job's framework is {framework.name}, and its script lets the ranks meet through {other.name} ({call}): "
        f"set spec.framework to {other.name}, or take that call out"
    )
    raise SystemExit(failure_message.refuse(words))
